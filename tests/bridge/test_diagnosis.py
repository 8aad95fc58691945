"""From what was read to a verdict: the worst counts, a reason is always given, and too little is no guess."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tenantq_bridge import AutovacuumSettings, Health, HealthVerdict, HolderKind, SnapshotHolder, TableAutovacuum
from tenantq_bridge.autovacuum import settings_of
from tenantq_bridge.diagnosis import diagnose
from tenantq_bridge.indexes import IndexSize
from tenantq_bridge.series import Sample, Series

MB = 1_000_000

READY = TableAutovacuum(table="ready", is_enabled=True, scale_factor=0.02, threshold=1_000, cost_delay=0)
SETTINGS = AutovacuumSettings(is_enabled=True, naptime=10, max_workers=3, tables=(READY,))

SERVER = {
    "autovacuum": "on",
    "track_counts": "on",
    "autovacuum_naptime": "60",
    "autovacuum_max_workers": "3",
    "autovacuum_vacuum_scale_factor": "0.2",
    "autovacuum_vacuum_threshold": "50",
    "autovacuum_vacuum_cost_delay": "-1",
    "vacuum_cost_delay": "2.5",
}


def series(
    *, megabytes: float = 50, growth: float = 0, dead: int = 500, minutes: int = 120, is_index: bool = False
) -> Series:
    """Return two samples a minute of a table at 1,000 rows a minute, growing by so many MB an hour."""
    start = datetime(2026, 11, 30, tzinfo=UTC)
    return Series(
        relation="ready_pkey" if is_index else "ready",
        table="ready",
        is_index=is_index,
        samples=tuple(
            Sample(
                at=start + timedelta(seconds=30 * n),
                bytes=round((megabytes + growth * n / 120) * MB),
                live_rows=1_000,
                dead_rows=dead,
                removed_rows=1 + n * 1_000,
                vacuums=1 + n,
            )
            for n in range(minutes * 2 + 1)
        ),
    )


def holder(**changes: Any) -> SnapshotHolder:
    made = SnapshotHolder(
        kind=HolderKind.SESSION,
        name="4711",
        pid=4711,
        role="report",
        application="nightly",
        state="idle in transaction",
        seconds=10.0,
        transactions=12,
        is_hidden=False,
    )
    return msgspec.structs.replace(made, **changes)


def judged(
    *given: Series,
    holders: tuple[SnapshotHolder, ...] = (),
    settings: AutovacuumSettings = SETTINGS,
    overgrown: tuple[IndexSize, ...] = (),
) -> Health:
    return diagnose(given or (series(), series(is_index=True)), holders, settings, overgrown)


def test_a_queue_that_stays_flat_is_healthy() -> None:
    health = judged()
    assert (health.verdict, health.findings, health.samples) == (HealthVerdict.HEALTHY, (), 241)
    assert health.reason == "each heap stays in its band, and no index grows without its rows"
    assert judged(series(megabytes=1)).reason == "the queue's tables have stayed below 8 MiB each"


def test_too_few_samples_are_said_and_are_no_verdict() -> None:
    for health, lacking in (
        (judged(series(minutes=20)), "20 min of samples"),
        (judged(series(megabytes=1, minutes=0)), "0 min of samples"),
        (diagnose((), (), SETTINGS, ()), "it has no samples"),
    ):
        assert health.verdict is HealthVerdict.UNKNOWN
        assert health.reason.startswith("ready cannot be judged yet: ")
        assert lacking in health.reason


def test_what_is_known_outweighs_what_is_not() -> None:
    health = judged(series(minutes=20), holders=(holder(seconds=100.0),))
    assert [finding.verdict for finding in health.findings] == [HealthVerdict.WARNING, HealthVerdict.UNKNOWN]
    assert health.verdict is HealthVerdict.WARNING


def test_a_growing_heap_is_unhealthy_and_a_growing_index_a_warning() -> None:
    heap = judged(series(growth=10))
    assert heap.verdict is HealthVerdict.UNHEALTHY
    assert heap.reason.startswith("the heap of ready still sets new peaks after 2.0 h: it is at 70.0 MB")
    index = judged(series(), series(growth=10, is_index=True))
    assert index.verdict is HealthVerdict.WARNING
    assert index.reason.startswith("the index ready_pkey grows by 10.0 MB an hour and is at 70.0 MB")


def test_growth_with_rows_is_a_backlog_where_messages_wait_and_nothing_elsewhere() -> None:
    def growing(table: str) -> Series:
        made = series(growth=10)
        more = [msgspec.structs.replace(s, live_rows=100_000 + 400 * n) for n, s in enumerate(made.samples)]
        return Series(relation=table, table=table, is_index=False, samples=tuple(more))

    backlog = judged(growing("ready"))
    assert backlog.verdict is HealthVerdict.WARNING
    assert backlog.reason == "ready grows with its rows: more comes in than is taken out"
    assert judged(series(), growing("forwarding")).verdict is HealthVerdict.HEALTHY


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(59, HealthVerdict.HEALTHY), (61, HealthVerdict.WARNING), (1_801, HealthVerdict.UNHEALTHY)],
)
def test_a_snapshot_counts_by_its_age(seconds: float, verdict: HealthVerdict) -> None:
    health = judged(holders=(holder(seconds=float(seconds)),))
    assert health.verdict is verdict
    if verdict is not HealthVerdict.HEALTHY:
        assert "session 4711 (idle in transaction, role report, application 'nightly') has held" in health.reason
        assert "pg_terminate_backend(4711)" in health.findings[0].advice


def test_a_snapshot_whose_age_nobody_may_see_counts_by_transactions() -> None:
    hidden = holder(seconds=None, state=None, is_hidden=True)
    young = judged(holders=(hidden,))
    assert young.verdict is HealthVerdict.HEALTHY
    assert "pg_read_all_stats" in young.findings[0].advice
    old = judged(holders=(msgspec.structs.replace(hidden, transactions=3_000_000),))
    assert old.verdict is HealthVerdict.WARNING
    assert "for 3,000,000 transactions" in old.reason


@pytest.mark.parametrize(
    ("kind", "name", "described", "advice"),
    [
        (HolderKind.PREPARED, "gid", "prepared transaction 'gid' of report", "ROLLBACK PREPARED"),
        (HolderKind.SLOT, "old_standby", "replication slot 'old_standby' (inactive)", "pg_drop_replication_slot"),
        (HolderKind.STANDBY, "99", "standby 'nightly' (process 99)", "hot_standby_feedback"),
    ],
)
def test_every_kind_of_holder_has_a_name_and_an_advice(
    kind: HolderKind, name: str, described: str, advice: str
) -> None:
    found = holder(kind=kind, name=name, state="inactive")
    assert found.described == described
    assert advice in found.advice


def test_dead_rows_that_vacuum_does_not_get_to_are_a_warning() -> None:
    health = judged(series(dead=200_000))
    assert health.verdict is HealthVerdict.WARNING
    assert "200,000 dead rows (a median) beside 1,000 live ones" in health.reason
    # 30 rows a second die: what lies dead between two vacuums is no finding.
    assert judged(series(dead=1_500)).verdict is HealthVerdict.HEALTHY


def test_an_index_far_beyond_its_rows_is_a_warning() -> None:
    index = IndexSize(schema="tenantq", name="ready_pkey", bytes=90 * MB, needed_bytes=MB, is_ours=True)
    health = judged(overgrown=(index,))
    assert health.reason == "the index ready_pkey takes 90.0 MB, and its live rows need about 1.0 MB"
    theirs = judged(overgrown=(msgspec.structs.replace(index, is_ours=False),))
    assert theirs.findings[0].advice == "as its owner: REINDEX INDEX CONCURRENTLY tenantq.ready_pkey"


def test_settings_are_the_tables_own_or_the_servers() -> None:
    settings = settings_of(
        SERVER, {"a": ["autovacuum_vacuum_scale_factor=0.02", "autovacuum_vacuum_cost_delay=0"], "b": []}
    )
    first, second = settings.tables
    assert (first.scale_factor, first.threshold, first.cost_delay, first.is_enabled) == (0.02, 50, 0, True)
    assert (second.scale_factor, second.threshold, second.cost_delay) == (0.2, 50, 2.5)
    assert (settings.is_enabled, settings.naptime) == (True, 60)


@pytest.mark.parametrize(
    ("server", "options", "verdict", "reason"),
    [
        ({"autovacuum": "off"}, [], HealthVerdict.UNHEALTHY, "autovacuum is off on the server"),
        ({"track_counts": "off"}, [], HealthVerdict.UNHEALTHY, "autovacuum is off on the server"),
        ({}, ["autovacuum_enabled=off"], HealthVerdict.UNHEALTHY, "autovacuum is off on ready"),
        ({}, [], HealthVerdict.WARNING, "on ready autovacuum waits until a large part"),
    ],
)
def test_settings_that_let_dead_rows_pile_up_are_found(
    server: dict[str, str], options: list[str], verdict: HealthVerdict, reason: str
) -> None:
    health = judged(settings=settings_of({**SERVER, **server}, {"ready": options}))
    assert health.verdict is verdict
    assert health.reason.startswith(reason)


def test_a_slow_naptime_is_said_and_changes_nothing() -> None:
    slow = msgspec.structs.replace(SETTINGS, naptime=60.0)
    health = judged(settings=slow)
    assert health.verdict is HealthVerdict.HEALTHY
    assert [finding.reason for finding in health.findings] == [
        "autovacuum_naptime is 60 s: no table is vacuumed more often"
    ]
