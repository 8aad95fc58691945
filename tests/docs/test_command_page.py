"""docs/command.md is true: it has every command and no other, and its examples print what it shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from tenantq_tools.cli import tenantq as command
from tenantq_tools.cli._failures import STATUSES
from tests.tools.command import run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "command.md").read_text(encoding="utf-8")

SETTINGS = re.compile(r"^\| .*?`(TENANTQ_[A-Z]+)`", re.MULTILINE)


def words_of(group: click.Group, prefix: str = "tenantq") -> set[str]:
    """Return every command that does something, as it is typed."""
    context = click.Context(group)
    found: set[str] = set()
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        found |= words_of(one, f"{prefix} {name}") if isinstance(one, click.Group) else {f"{prefix} {name}"}
    return found


def sections() -> dict[str, str]:
    """Return the text of each command's section."""
    parts = re.split(r"^### `(.+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples(text: str) -> list[tuple[str, list[str]]]:
    """Return what is typed in a text's sessions, and the lines that it prints there."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for typed, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            found.append((typed, printed.splitlines()))
    return found


def shape(value: object) -> object:
    """Return a JSON value without what differs from run to run: keys, and the types of what they have."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def check(typed: str, printed: list[str]) -> None:
    """Run an example, and compare the form of what it prints with what the page shows."""
    program, *arguments = shlex.split(typed)
    assert program == "tenantq"
    shown = run(*arguments, env={"TENANTQ_STORE": "var/tenants"}).stdout.splitlines()
    if "--json" not in arguments:
        assert [line.split()[0] for line in shown][: len(printed)] == [line.split()[0] for line in printed]
        return
    assert bool(shown) == bool(printed), typed
    for line, expected in zip(shown, printed, strict=False):
        assert shape(json.loads(line)) == shape(json.loads(expected)), typed


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections()) == words_of(command)


def test_every_section_shows_its_command() -> None:
    for words, text in sections().items():
        typed = "\n".join(re.findall(r"^(?:\$ )?(tenantq .*)$", text, re.MULTILINE))
        assert f"{words} " in f"{typed}\n".replace("\n", " \n"), words


def test_the_statuses_are_those_of_the_command() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert {int(status): meaning for status, meaning in rows} == STATUSES


def test_the_variables_are_those_of_the_command() -> None:
    variables = {
        parameter.envvar
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.envvar
    }
    assert set(SETTINGS.findall(PAGE)) == variables


def test_the_examples_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"^```jsonl\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    Path("events.jsonl").write_text(lines, encoding="utf-8")
    typed = [(line, printed) for line, printed in examples(PAGE) if not line.startswith("tenantq bridge")]
    assert len(typed) > 15
    for line, printed in typed:
        check(line, printed)


@pytest.mark.postgres
def test_the_examples_of_the_bridge_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_dsn: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("var/tenants").mkdir(parents=True)
    typed = [(line, printed) for line, printed in examples(PAGE) if line.startswith("tenantq bridge")]
    assert len(typed) > 4
    for line, printed in typed:
        check(f"{line} --postgres '{postgres_dsn}'", printed)
