"""The page of all benchmarks: docs/benchmarks.md, written from the results beside it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from bench._plots import draw
from bench._report import Result, describe, json_line, shown

__all__ = ["write_page"]

INTRODUCTION = """\
# Benchmarks

Measured side by side in one run on one machine: contenders take turns, warm-ups are not counted, figures are
medians, and each ratio is the median of neighbouring pairs. Payloads are 70% 256 B, 25% 1 KB and 5% 8 KB of
JSON; in the benchmarks named pg_ they are the documents' `{"n": 1}`. "The documents" are the published benchmarks
that the design starts from; "documents' loop" is their queue as they printed it, run here. Durability is equal
within a comparison: NORMAL beside NORMAL, FULL beside FULL.

Written by `python -m bench all --write docs/benchmarks.md`; what each run printed is in
[benchmarks.jsonl](benchmarks.jsonl). Your machine gives other numbers: run it there.
"""


def write_page(page: Path, results: list[Result], order: list[str]) -> None:
    """Add results to those that the page shows already, draw their plots, and write the page anew."""
    page.parent.mkdir(parents=True, exist_ok=True)
    log = page.with_suffix(".jsonl")
    known: dict[str, Result] = {}
    if log.exists():
        for line in log.read_bytes().splitlines():
            result = msgspec.json.decode(line, type=Result)
            known[result.name] = result
    for result in results:
        known[result.name] = result
        draw(result, page.parent / "plots")
    kept = [known[name] for name in order if name in known]
    log.write_text("".join(json_line(result) + "\n" for result in kept), encoding="utf-8")
    parts = [INTRODUCTION, _machine(kept), _figures(kept)]
    parts += [_section(result, page.parent) for result in kept]
    page.write_text("\n".join(parts), encoding="utf-8")


def _machine(results: list[Result]) -> str:
    lines = ["## Machine\n"]
    stamps = {(str(result.machine), str(result.versions)) for result in results}
    newest = max(results, key=lambda result: result.date)
    machine = newest.machine
    lines.append(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['kernel']}, "
        f"{machine['filesystem']}. "
        + ", ".join(f"{name} {version}" for name, version in newest.versions.items())
        + ".\n",
    )
    if len(stamps) > 1:
        lines.append("Some results are of another machine or of other versions: benchmarks.jsonl says which.\n")
    return "\n".join(lines)


def _figures(results: list[Result]) -> str:
    lines = ["## The figures to reach\n", "| figure | target | measured | |", "|---|---|---|---|"]
    for result in results:
        for ratio in result.ratios:
            if ratio.is_met is None:
                continue
            target = f"{ratio.at_least:g} or more" if ratio.at_least is not None else f"{ratio.at_most:g} or less"
            met = "met" if ratio.is_met else "not met"
            lines.append(
                f"| {ratio.name} ([{result.name}](#{result.name})) | {target} | {ratio.median:.3g} | {met} |"
            )
    return "\n".join(lines) + "\n"


def _section(result: Result, folder: Path) -> str:
    lines = [f"## {result.name}\n", f"{result.question}\n"]
    parameters = ", ".join(f"{name} {_plain(value)}" for name, value in result.parameters.items())
    lines.append(f"{result.date[:10]}; {parameters}.\n")
    if result.rows:
        columns = list(result.rows[0])
        numbers = [isinstance(result.rows[0][column], int | float | None) for column in columns]
        lines.append("| " + " | ".join(columns) + " |")
        lines.append("|" + "|".join("--:" if is_number else "---" for is_number in numbers) + "|")
        lines += ["| " + " | ".join(shown(value) for value in row.values()) + " |" for row in result.rows]
        lines.append("")
    lines += [f"- {describe(ratio)}" for ratio in result.ratios]
    lines += [f"- {note}" for note in result.notes]
    plot = Path("plots") / f"{result.name}.svg"
    if (folder / plot).exists():
        lines.append(f"\n![{result.name}]({plot.as_posix().replace(os.sep, '/')})")
    return "\n".join(lines) + "\n"


def _plain(value: object) -> str:
    return " ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
