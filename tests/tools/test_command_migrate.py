"""`tenantq migrate`: what becomes of old, current, newer, busy and damaged files."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq._schema import SCHEMA_VERSION
from tenantq._sqlite import Database
from tenantq_tools.cli.migrate import _Pace
from tests.older import make_version_1, version_of
from tests.tools.command import StoreCommand, spawn


def make_old(tq: StoreCommand, *tenants: str) -> list[Path]:
    with tenantq.open(tq.path) as store:
        return [make_version_1(store.tenant(tenant).path, tenant) for tenant in tenants]


def test_migrate_brings_the_named_tenants_to_this_schema_and_no_other(tq: StoreCommand) -> None:
    paths = make_old(tq, "acme", "globex", "initech")
    assert tq("migrate", "acme", "globex").stdout == "2 files migrated, 0 were current; 0 failed\n"
    assert [version_of(path) for path in paths] == [SCHEMA_VERSION, SCHEMA_VERSION, 1]


def test_migrate_all_does_what_is_left_and_can_be_given_again(tq: StoreCommand) -> None:
    make_old(tq, *(f"t-{number:03}" for number in range(30)))
    tq.enqueue("new", "jobs", 1)
    tq("migrate", "t-000")
    *lines, totals = tq.json_lines("migrate", "--all", "--jobs", "3")
    assert sorted(line["tenant"] for line in lines) == [f"t-{number:03}" for number in range(1, 30)]
    assert all((line["from"], line["error"]) == (1, None) for line in lines)
    assert totals == {"tenants": 31, "migrated": 29, "current": 2, "failed": 0, "left": 0}
    assert tq.json("migrate", "--all") == {"tenants": 31, "migrated": 0, "current": 31, "failed": 0, "left": 0}


def test_migrate_names_the_tenants_that_fail_and_goes_on(tq: StoreCommand) -> None:
    damaged, newer, busy, good = make_old(tq, "damaged", "newer", "busy", "good")
    damaged.write_bytes(b"no database" * 1000)
    with closing(Database(newer)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with closing(Database(busy)) as database:
        database.begin()
        *lines, totals = tq.json_lines("migrate", "--all", status=1)
    errors = {line["tenant"]: line["error"] for line in lines}
    assert "is not a SQLite database" in errors["damaged"]
    assert f"schema version {SCHEMA_VERSION + 1}" in errors["newer"]
    assert "locked" in errors["busy"]
    assert errors["good"] is None
    assert totals == {"tenants": 4, "migrated": 1, "current": 0, "failed": 3, "left": 0}
    assert (version_of(good), version_of(busy)) == (SCHEMA_VERSION, 1)
    result = tq("migrate", "nobody", status=1)
    assert "nobody: the store has no tenant" in result.stderr


def test_migrate_can_be_stopped_and_goes_on_where_it_was(tq: StoreCommand) -> None:
    make_old(tq, *(f"t-{number}" for number in range(20)))
    process = spawn("migrate", "--all", "--json", "--jobs", "1", "--rate", "5", "--store", str(tq.path))
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Results are told in groups: the first file itself tells that the command is at work.
        with tenantq.open(tq.path) as store:
            first = store.tenant(next(iter(store.tenants()))).path
        while version_of(first) == 1:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 1
        assert "tenants were not reached" in process.stderr.read()
        process.stdout.read()
    totals = tq.json_lines("migrate", "--all")[-1]
    assert (totals["tenants"], totals["left"], totals["failed"]) == (20, 0, 0)
    assert totals["current"] >= 1


@pytest.mark.parametrize("arguments", [[], ["acme", "--all"]])
def test_migrate_wants_tenants_or_all(tq: StoreCommand, arguments: list[str]) -> None:
    assert "give tenants, or --all" in tq("migrate", *arguments, status=2).stderr


def test_verify_and_backup_do_not_migrate(tq: StoreCommand, tmp_path: Path) -> None:
    (path,) = make_old(tq, "acme")
    assert "of the older schema 1" in tq("verify", "acme").stdout
    assert tq.json("verify", "acme")["schema_version"] == 1
    tq("backup", "acme", str(tmp_path / "copy.db"))
    assert (version_of(path), version_of(tmp_path / "copy.db")) == (1, 1)
    tq("restore", "globex", str(make_version_1(tmp_path / "globex.db", "globex")))
    assert "of the older schema" not in tq("verify", "globex").stdout


def test_the_jobs_keep_to_the_rate_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, now, waits = threading.Event(), 100.0, list[float]()
    monkeypatch.setattr(stopping, "wait", waits.append)
    pace = _Pace(4.0, stopping, lambda: now)
    for _ in range(3):
        pace.rest()
    now = 110.0  # late: it is not made up for
    pace.rest()
    assert waits == [0.25, 0.5, 0.75, 0.25]


def test_a_rest_follows_each_file_that_was_migrated_and_no_other(
    tq: StoreCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(_Pace, "rest", lambda self: rests.append(self._interval))
    make_old(tq, "acme", "globex")
    tq.enqueue("new", "jobs", 1)
    assert tq.json_lines("migrate", "--all", "--rate", "1000")[-1]["migrated"] == 2
    assert rests == [0.001] * 2
