"""Migrations by processes that are killed at a point, and by several at once."""

from __future__ import annotations

import contextlib
from contextlib import closing
from pathlib import Path

import pytest

import tenantq
from tenantq import _schema
from tenantq._schema import SCHEMA_VERSION
from tenantq._sqlite import Database
from tests.children import TRANSACTION_POINTS, Child
from tests.older import make_version_1, version_of

MIGRATOR = """
from tenantq import _migrations, _schema

root, point, action = sys.argv[1:]
take_step = _schema.take_step
_schema._MIGRATIONS["to_2"] += "CREATE TABLE of_the_step (a); INSERT INTO of_the_step VALUES (1);"
prepare, complete = _migrations._WITH_DATA[2]

def after_reading(database):
    prepare(database)
    stop_here("at the point")

def after_data(database, rows):
    complete(database, rows)
    stop_here("at the point")

def after_step(database, version):
    take_step(database, version)
    stop_here("at the point")

match point:
    case "after reading":
        _migrations._WITH_DATA[2] = (after_reading, complete)
    case "after data":
        _migrations._WITH_DATA[2] = (prepare, after_data)
    case "after step":
        _schema.take_step = after_step
stop_at(point)
store = tenantq.open(root)
if action == "open":
    store.tenant("acme").enqueue("mail", "new")
else:
    store.migrate("acme")
say("never here")
"""

BY_HAND = "INSERT INTO queue (id, queue, visible_at, enqueued_at, payload) VALUES (9, 'mail', 0, 0, '1')"

POINTS = ["after reading", "after begin", "after data", "after step", "before commit", "after commit"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("action", ["open", "migrate"])
def test_a_killed_migration_leaves_the_old_schema_or_the_new(tmp_path: Path, point: str, action: str) -> None:
    path = make_version_1(_schema.path_of(tmp_path, "acme"), "acme")
    with closing(Database(path)) as database:
        database.execute(BY_HAND)
    with Child(TRANSACTION_POINTS + MIGRATOR, tmp_path, point, action) as child:
        assert child.heard() == "at the point"
        child.kill()
    is_new = point == "after commit"
    assert version_of(path) == (2 if is_new else 1)
    with closing(Database(path)) as database:
        assert database.execute("PRAGMA integrity_check") == [("ok",)]
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
        assert ("of_the_step" in tables) is is_new
        meta = _schema.read_meta(database)
        assert ("migrated_to_2" in meta) is is_new
        ((ready,),) = database.execute("SELECT ready FROM tenantq_depth WHERE queue = 'mail'")
        assert ready == (3 if is_new else 2)
    with tenantq.open(tmp_path) as store:
        stats = store.tenant("acme").stats()
        assert (stats.ready, stats.dead, stats.outbox) == (5, 1, 1)
        assert store.activity().migrated == (0 if is_new else 1)
    assert version_of(path) == SCHEMA_VERSION
    assert tenantq.verify(path).problems == ()


AT_ONCE = """
store = tenantq.open(sys.argv[1])
say("here")
hear()
for number in range(20):
    store.tenant(f"t-{number}").enqueue("work", sys.argv[2])
say(store.activity().migrated)
hear()
store.close()
"""


def test_of_several_processes_one_migrates_each_file(tmp_path: Path) -> None:
    paths = [make_version_1(_schema.path_of(tmp_path, f"t-{number}"), f"t-{number}") for number in range(20)]
    for path in paths:
        with closing(Database(path)) as database:
            database.execute(BY_HAND)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(AT_ONCE, tmp_path, number)) for number in range(4)]
        for child in children:
            assert child.heard() == "here"
        for child in children:
            child.say()
        assert sum(int(child.heard()) for child in children) == 20
        for child in children:
            child.say()
            assert child.end() == 0
    for path in paths:
        report = tenantq.verify(path)
        assert report.problems == ()
        assert (report.schema_version, report.dead) == (SCHEMA_VERSION, 1)
        assert report.ready + report.claimed == 4 + 4


OF_THIS_VERSION = """
from tenantq.errors import NewerFile

store = tenantq.open(sys.argv[1])
acme = store.tenant("acme")
acked = 0
say("here")
try:
    while True:
        acme.enqueue("work", acked)
        acked += 1
except NewerFile:
    say(acked)
store.tenant("other").enqueue("work", 1)
say("served")
hear()
"""

OF_THE_NEXT = """
from tenantq import _schema

_schema.SCHEMA_VERSION = int(sys.argv[2]) + 1
_schema._MIGRATIONS[f"to_{_schema.SCHEMA_VERSION}"] = "CREATE TABLE of_the_next_version (a);"
store = tenantq.open(sys.argv[1])
acme = store.tenant("acme")
acme.enqueue("work", "of the next")
say(store.activity().migrated)
hear()
say(acme.stats().ready)
store.close()
"""


def test_a_rolling_deploy_loses_nothing_and_tells_the_older_process(tmp_path: Path) -> None:
    with (
        Child(OF_THIS_VERSION, tmp_path) as older,
        contextlib.ExitStack() as stack,
    ):
        assert older.heard() == "here"
        newer = stack.enter_context(Child(OF_THE_NEXT, tmp_path, SCHEMA_VERSION))
        assert newer.heard() == "1"
        acked = int(older.heard())
        assert older.heard() == "served"
        newer.say()
        assert newer.heard() == str(acked + 1)
        assert newer.end() == 0
