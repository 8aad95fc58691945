"""The README is true: its quickstart runs, its links lead somewhere, its commands are those of CI."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_quickstart_runs_and_prints_what_its_handlers_do(tmp_path: Path) -> None:
    (quickstart,) = blocks("python")
    script = tmp_path / "quickstart.py"
    script.write_text(quickstart, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == sorted(
        [
            "welcome, ada@example.org",
            "report for 2026-11",
            "warm /orders/42",
            "1 event waits for the forwarder",
        ],
    )


@pytest.mark.parametrize(
    "page",
    [README, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))],
    ids=["README", *(path.stem for path in sorted((ROOT / "docs").glob("*.md")))],
)
def test_every_local_link_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page):
        if not target.startswith("http"):
            assert (ROOT / target).exists() or (ROOT / "docs" / target).exists(), target


def test_the_test_command_is_the_one_that_ci_runs() -> None:
    command = next(block for block in blocks("sh") if "pytest" in block)
    assert ".[dev]" in command
    assert "-m pytest" in command
    assert "-m pytest" in (ROOT / ".ci" / "run").read_text()
    assert ".[dev]" in (ROOT / ".ci" / "run").read_text()
