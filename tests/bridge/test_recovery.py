"""Kills, restores and failovers: every event once, whatever was lost on either side."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import tenantq
from tenantq.clock import SystemClock
from tenantq_bridge import Forwarder, PostgresQueue
from tests.bridge.conftest import Sql
from tests.bridge.test_forwarder import drain
from tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[2]

Bodies = Callable[[], list[int]]

MODES = ("by hand", "running")
"""Of the child: a batch after the other, or several on their way at once."""


@pytest.fixture
def bodies(migrated_dsn: str, postgres_queue: PostgresQueue) -> Bodies:
    """Tell the numbers that have arrived, in the order of the claims. Subscribes."""
    postgres_queue.subscribe("q", "*")

    def run() -> list[int]:
        with psycopg.connect(migrated_dsn) as connection:
            rows = connection.execute("SELECT body FROM tenantq.ready WHERE queue = 'q' ORDER BY rank, seq")
            return [int(row[0]) for row in rows]

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


class PastClock(SystemClock):
    """A host's clock, some days ago."""

    def __init__(self, days: int) -> None:
        self.days = days

    def now_ns(self) -> int:
        return time.time_ns() - self.days * 86_400 * 10**9


def emit(root: Path, numbers: range, tenant: str = "acme", *, days_ago: int = 0) -> None:
    with tenantq.open(root, clock=PastClock(days_ago)) as store, store.tenant(tenant).transaction() as tx:
        for number in numbers:
            tx.emit("t", number)


def forward(root: Path, queue: PostgresQueue) -> int:
    with tenantq.open(root) as store:
        forwarder = Forwarder(store, queue, batch_rows=4)
        try:
            return drain(forwarder)
        finally:
            forwarder.stop()


def path_of(root: Path, tenant: str = "acme") -> Path:
    with tenantq.open(root) as store:
        return store.tenant(tenant).path


def copy_to(root: Path, dest: Path) -> Path:
    """Back a closed tenant up as an operator does."""
    return Path(shutil.copy(path_of(root), dest))


def copy_back(root: Path, source: Path) -> None:
    shutil.copy(source, path_of(root))


def run_child(root: Path, dsn: str, point: str, rounds: int, mode: str = "by hand") -> int:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bridge")])}
    command = [sys.executable, "-m", "tests.bridge.forward_child", str(root), dsn, point, str(rounds), mode]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=60).returncode


@pytest.fixture(params=[(mode, point) for mode in MODES for point in ("staged", "committed", "marked")])
def killed(request: pytest.FixtureRequest, root: Path, migrated_dsn: str, bodies: Bodies) -> Path:
    """A store whose forwarder was killed twice at a named point."""
    for tenant in range(3):
        emit(root, range(10 * tenant, 10 * tenant + 10), f"t{tenant}")
    mode, point = request.param
    assert run_child(root, migrated_dsn, point, 2, mode) == -signal.SIGKILL
    assert run_child(root, migrated_dsn, point, 1, mode) == -signal.SIGKILL
    return root


def test_a_forwarder_killed_anywhere_loses_and_repeats_nothing(
    killed: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    root = killed
    emit(root, range(30, 40), "t0")
    forward(root, postgres_queue)
    assert sorted(bodies()) == list(range(40))
    for tenant in range(3):
        mine = [number for number in bodies() if number // 10 == tenant or (tenant == 0 and number >= 30)]
        assert mine == sorted(mine)
    with tenantq.open(root) as store:
        assert [store.tenant(name).outbox.position().pending for name in store.tenants()] == [0, 0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_the_child_of_the_crash_tests_ends_well_when_nothing_kills_it(
    root: Path, migrated_dsn: str, bodies: Bodies, mode: str
) -> None:
    for tenant in range(3):
        emit(root, range(10 * tenant, 10 * tenant + 10), f"t{tenant}")
    assert run_child(root, migrated_dsn, "never", 1, mode) == 0
    assert sorted(bodies()) == list(range(30))


def test_events_pending_at_the_backup_are_neither_lost_nor_repeated(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    emit(root, range(5))
    forward(root, postgres_queue)
    emit(root, range(5, 10))  # pending in the backup, and forwarded after it
    backup = copy_to(root, tmp_path / "backup.db")
    emit(root, range(10, 15))
    forward(root, postgres_queue)
    copy_back(root, backup)
    emit(root, range(100, 120))  # takes the places of 10 to 14 again, and more
    assert forward(root, postgres_queue) == 20
    assert bodies() == [*range(15), *range(100, 120)]
    assert forward(root, postgres_queue) == 0


def test_a_restore_is_noticed_before_anything_new_is_emitted(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    emit(root, range(5))
    backup = copy_to(root, tmp_path / "backup.db")
    emit(root, range(5, 10))
    forward(root, postgres_queue)
    copy_back(root, backup)
    assert forward(root, postgres_queue) == 0
    emit(root, range(100, 105))  # exactly as many as were lost: the same places
    assert forward(root, postgres_queue) == 5
    assert bodies() == [*range(10), *range(100, 105)]


def test_a_backup_with_all_that_was_forwarded_goes_on_in_its_epoch(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies, sql: Sql
) -> None:
    emit(root, range(5))
    backup = copy_to(root, tmp_path / "backup.db")
    forward(root, postgres_queue)
    copy_back(root, backup)
    emit(root, range(5, 8))
    assert forward(root, postgres_queue) == 3
    assert bodies() == list(range(8))
    assert sql(b"SELECT epoch FROM tenantq.forwarding") == [(1,)]


def test_to_an_older_backup_and_on_to_a_newer_one(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    emit(root, range(3))
    older = copy_to(root, tmp_path / "older.db")
    emit(root, range(3, 9))
    newer = copy_to(root, tmp_path / "newer.db")
    forward(root, postgres_queue)
    copy_back(root, older)
    assert forward(root, postgres_queue) == 0
    # The newer one continues the older one, so its first events look like what comes next.
    copy_back(root, newer)
    assert forward(root, postgres_queue) == 0
    copy_back(root, older)
    emit(root, range(200, 202))
    assert forward(root, postgres_queue) == 2
    copy_back(root, newer)
    emit(root, range(300, 302))
    assert forward(root, postgres_queue) == 2
    assert bodies() == [*range(9), 200, 201, 300, 301]


def test_restore_while_the_store_is_open(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    with tenantq.open(root) as store:
        forwarder = Forwarder(store, postgres_queue)
        tenant = store.tenant("acme")
        for number in range(3):
            tenant.emit("t", number)
        backup = tenant.backup(tmp_path / "backup.db")
        for number in range(3, 6):
            tenant.emit("t", number)
        assert drain(forwarder) == 6
        store.restore("acme", backup)
        for number in range(100, 103):
            tenant.emit("t", number)
        assert drain(forwarder) == 3
        forwarder.stop()
    assert bodies() == [0, 1, 2, 3, 4, 5, 100, 101, 102]


@pytest.mark.parametrize("way", ["restore", "cp"])
@pytest.mark.parametrize("more", [3, 60], ids=["fewer events than before", "more events than before"])
def test_a_backup_from_before_the_events_that_were_pruned_since(
    root: Path, postgres_queue: PostgresQueue, bodies: Bodies, way: str, more: int
) -> None:
    emit(root, range(5), days_ago=3)
    forward(root, postgres_queue)
    emit(root, range(5, 10), days_ago=3)  # pending in the backup
    backup = copy_to(root, root.with_name("backup.db"))
    emit(root, range(10, 30), days_ago=2)
    forward(root, postgres_queue)
    with tenantq.open(root) as store:
        kept = store.tenant("acme").outbox.read(0, limit=99, max_bytes=10_000)
        assert [event.seq for event in kept] == [30]  # a forwarder prunes
        if way == "restore":
            store.restore("acme", backup)
    if way == "cp":
        copy_back(root, backup)
    emit(root, range(100, 100 + more))
    assert forward(root, postgres_queue) == more
    assert forward(root, postgres_queue) == 0
    assert bodies() == [*range(30), *range(100, 100 + more)]


def test_events_of_a_copy_under_another_id_are_not_forwarded_until_somebody_sends_them(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    emit(root, range(3))
    forward(root, postgres_queue)
    emit(root, range(3, 5))
    with tenantq.open(root) as store:
        store.restore("acme", store.tenant("acme").backup(tmp_path / "backup.db"), as_="look")
    assert forward(root, postgres_queue) == 2
    assert bodies() == list(range(5))
    with tenantq.open(root) as store:
        look = store.tenant("look")
        assert look.stats().undeliverable == 2
        look.emit("t", 100)
        assert look.outbox.redeliver() == 2
    assert forward(root, postgres_queue) == 3
    assert bodies() == [*range(5), 100, 3, 4]


def test_a_file_replaced_between_the_commit_and_the_mark_is_not_marked(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies
) -> None:
    with tenantq.open(root) as store:
        tenant = store.tenant("acme")
        tenant.emit("t", 0)
        backup = tenant.backup(tmp_path / "backup.db")
        tenant.emit("t", 1)

        def replace(step: str) -> None:
            if step == "committed" and not replaced:
                replaced.append(step)
                store.restore("acme", backup)
                tenant.emit("t", 100)

        replaced: list[str] = []
        forwarder = Forwarder(store, postgres_queue, failpoint=replace)
        assert forwarder.run_once() == 2
        assert tenant.outbox.position().pending == 2
        assert drain(forwarder) == 1
        assert tenant.outbox.position().pending == 0
        forwarder.stop()
    assert bodies() == [0, 1, 100]


def test_a_tenant_deleted_and_made_again_begins_anew(
    root: Path, postgres_queue: PostgresQueue, bodies: Bodies, sql: Sql
) -> None:
    emit(root, range(5))
    forward(root, postgres_queue)
    with tenantq.open(root) as store:
        store.delete("acme", events="drop")
        store.create("acme")
    assert forward(root, postgres_queue) == 0
    emit(root, range(100, 103))
    assert forward(root, postgres_queue) == 3
    assert bodies() == [0, 1, 2, 3, 4, 100, 101, 102]
    assert sql(b"SELECT epoch, last_seq, forwarded FROM tenantq.forwarding") == [(2, 3, 8)]


@pytest.fixture
def failover(postgres_server: PostgresServer, migrated_dsn: str) -> Iterator[Callable[[], Callable[[], None]]]:
    """Keep the database as it is; the function that this gives goes back to it, and loses what came later."""
    name = str(psycopg.conninfo.conninfo_to_dict(migrated_dsn)["dbname"])
    kept = f"{name}_kept"

    def keep() -> Callable[[], None]:
        def execute(statement: str, *names: str) -> None:
            identifiers = [psycopg.sql.Identifier(each) for each in names]
            postgres_server.execute(psycopg.sql.SQL(statement).format(*identifiers))

        end = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"
        execute("ALTER DATABASE {} ALLOW_CONNECTIONS false", name)  # a copy needs it to itself
        postgres_server.execute(end.encode())
        execute("CREATE DATABASE {} TEMPLATE {}", kept, name)
        execute("ALTER DATABASE {} ALLOW_CONNECTIONS true", name)

        def go_back() -> None:
            execute("DROP DATABASE {} WITH (FORCE)", name)
            execute("ALTER DATABASE {} RENAME TO {}", kept, name)

        return go_back

    yield keep
    postgres_server.drop_database(f"dbname={kept}")


def test_what_a_failover_lost_is_sent_again_though_nothing_new_is_emitted(
    root: Path,
    postgres_queue: PostgresQueue,
    bodies: Bodies,
    failover: Callable[[], Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tenantq.open(root) as store:
        forwarder = Forwarder(store, postgres_queue, batch_rows=4)
        for number in range(5):
            store.tenant("acme").emit("t", number)
        assert drain(forwarder) == 5
        go_back = failover()
        for number in range(5, 15):
            store.tenant("acme").emit("t", number)
        assert drain(forwarder) == 10
        go_back()
        assert bodies() == list(range(5))
        assert forwarder._watch is not None
        while forwarder._watch.wait(0.6):
            pass  # its own marks are changes too; from here on nothing but the lost connection tells
        monkeypatch.setattr("tenantq_bridge.forwarder.HEARTBEAT", 0.05)
        forwarder._next_heartbeat = 0.0
        deadline = time.monotonic() + 30
        with forwarder:
            while forwarder.forwarded < 25:
                assert time.monotonic() < deadline, "it does not notice"
                threading.Event().wait(0.01)
        assert store.tenant("acme").outbox.position().pending == 0
    assert bodies() == list(range(15))


def test_what_a_failover_lost_while_no_forwarder_ran_is_sent_again_by_the_next_one(
    root: Path, migrated_dsn: str, bodies: Bodies, failover: Callable[[], Callable[[], None]]
) -> None:
    emit(root, range(5))
    with PostgresQueue(migrated_dsn) as queue:
        forward(root, queue)
    go_back = failover()
    emit(root, range(5, 10))
    with PostgresQueue(migrated_dsn) as queue:
        forward(root, queue)
    go_back()
    assert bodies() == list(range(5))
    # No file has an event that it does not know to be in Postgres, and no connection was lost that this one knew.
    with tenantq.open(root) as store, PostgresQueue(migrated_dsn) as queue, Forwarder(store, queue) as forwarder:
        deadline = time.monotonic() + 30
        while forwarder.forwarded < 5:
            assert time.monotonic() < deadline, "it does not compare"
            threading.Event().wait(0.01)
    assert bodies() == list(range(10))


def test_a_forwarder_that_is_started_again_compares_all_tenants(
    root: Path, postgres_queue: PostgresQueue, bodies: Bodies, sql: Sql
) -> None:
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        for number in range(5):
            acme.emit("t", number)
        forwarder = Forwarder(store, postgres_queue)
        for lost in (0, 3):
            with forwarder:
                deadline = time.monotonic() + 30
                while forwarder.forwarded < 5 + lost:
                    assert time.monotonic() < deadline, "it does not compare"
                    threading.Event().wait(0.01)
            # As after a failover that no connection of this process was there to see.
            sql(b"DELETE FROM tenantq.ready WHERE body::text::int > 1")
            there = {"event_id": acme.outbox.event_id_at(2)}
            sql(b"UPDATE tenantq.forwarding SET last_seq = 2, last_event_id = %(event_id)s", there)
            with store.exclusive("acme"):
                pass  # closed, as an eviction leaves it: the schedule knows that nothing waits in it
    assert forwarder.forwarded == 8
    assert bodies() == [0, 1]  # of the last time nobody has sent again yet


def test_a_failover_that_lost_more_than_the_file_keeps_is_quarantined_not_guessed(
    root: Path, postgres_queue: PostgresQueue, bodies: Bodies, failover: Callable[[], Callable[[], None]]
) -> None:
    emit(root, range(5))
    emit(root, range(50, 52), "other")
    forward(root, postgres_queue)
    go_back = failover()
    emit(root, range(5, 10))
    forward(root, postgres_queue)
    with tenantq.open(root) as store:
        assert store.tenant("acme").outbox.prune(older_than=0) == 9
    go_back()
    emit(root, range(10, 12))
    emit(root, range(52, 54), "other")
    with tenantq.open(root) as store:
        forwarder = Forwarder(store, postgres_queue)
        assert drain(forwarder) == 2
        assert forwarder.quarantines == 1
        [state] = [state for state in forwarder.states() if state.quarantined_at is not None]
        assert state.tenant == "acme"
        assert "no longer keeps" in (state.reason or "")
        assert forwarder.readmit("acme", resend=True)
        assert drain(forwarder) == 2
        assert not forwarder.readmit("acme", resend=True)
        forwarder.stop()
    assert sorted(bodies()) == [0, 1, 2, 3, 4, 10, 11, 50, 51, 52, 53]


@pytest.fixture
def forget(sql: Sql) -> Callable[[], None]:
    """Drop the days that are more than a week old, as if all that is known had been forwarded then."""

    def run() -> None:
        sql(b"DELETE FROM tenantq.seen")
        sql(b"UPDATE tenantq.seen_window SET dropped_through = current_date - 8")

    return run


@pytest.mark.parametrize("resend", [True, False])
def test_a_backup_older_than_the_window_is_quarantined_until_somebody_decides(
    root: Path, postgres_queue: PostgresQueue, bodies: Bodies, forget: Callable[[], None], resend: bool
) -> None:
    emit(root, range(2), days_ago=12)
    forward(root, postgres_queue)
    emit(root, range(2, 5), days_ago=11)
    backup = copy_to(root, root.with_name("backup.db"))
    emit(root, range(5, 7), days_ago=10)
    forward(root, postgres_queue)
    forget()
    copy_back(root, backup)
    with tenantq.open(root) as store:
        forwarder = Forwarder(store, postgres_queue)
        assert drain(forwarder) == 0
        assert forwarder.quarantines == 1
        store.tenant("acme").emit("t", 100)
        assert drain(forwarder) == 0
        assert forwarder.readmit("acme", resend=resend)
        drain(forwarder)
        store.tenant("acme").emit("t", 101)
        drain(forwarder)
        forwarder.stop()
    assert bodies() == list(range(7)) + ([2, 3, 4, 100, 101] if resend else [101])


def test_a_backup_older_than_the_window_without_pending_events_needs_nobody(
    root: Path, postgres_queue: PostgresQueue, bodies: Bodies, sql: Sql, forget: Callable[[], None]
) -> None:
    emit(root, range(3), days_ago=12)
    forward(root, postgres_queue)
    backup = copy_to(root, root.with_name("backup.db"))
    emit(root, range(3, 5), days_ago=10)
    forward(root, postgres_queue)
    forget()
    copy_back(root, backup)
    emit(root, range(5, 7))
    assert forward(root, postgres_queue) == 2
    assert sql(b"SELECT epoch, quarantined_at FROM tenantq.forwarding") == [(2, None)]
    assert bodies() == list(range(7))


def test_the_same_event_id_in_two_tenants_is_two_events(
    root: Path, tmp_path: Path, postgres_queue: PostgresQueue, bodies: Bodies, sql: Sql
) -> None:
    emit(root, range(3), "acme")
    emit(root, range(3, 6), "other")
    backup = copy_to(root, tmp_path / "backup.db")
    sql(b"SELECT tenantq.open_seen_days()")
    with tenantq.open(root) as store:
        ids = [store.tenant("acme").outbox.event_id_at(seq) for seq in (1, 2, 3)]
    sql(b"INSERT INTO tenantq.seen VALUES (current_date, 'other', %(ids)s::uuid[])", {"ids": ids})
    sql(
        b"INSERT INTO tenantq.forwarding (tenant, file_id, epoch_at, last_seq, last_event_id) "
        b"VALUES ('acme', 'another file', now(), 9, gen_random_uuid())"
    )
    copy_back(root, backup)
    assert forward(root, postgres_queue) == 6
    assert sorted(bodies()) == list(range(6))
