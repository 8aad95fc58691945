"""From what was read to a verdict, with its reasons and what to do; nothing here asks the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from tenantq_bridge.autovacuum import AutovacuumSettings
from tenantq_bridge.horizon import SnapshotHolder
from tenantq_bridge.indexes import IndexSize
from tenantq_bridge.series import SMALL_BYTES, Growth, HeapHealth, IndexHealth, Series, measure_heap, measure_index

__all__ = ["Finding", "Health", "HealthVerdict", "diagnose"]

HOT_TABLE = "ready"
"""Every message passes it: while it cannot be judged, the queue cannot."""

BACKLOGS = {
    "ready": "run more workers, or see in `tenantq bridge status` which queue waits",
    "delayed": "see why so many messages are retried or put off",
    "dead": "look at the dead letters' errors, and redrive them",
}
"""Tables whose growth with their rows is worth a word; the others' is that of tenants and of time."""

WARN_SNAPSHOT = 60.0
ILL_SNAPSHOT = 1_800.0
"""Seconds for which one is held: a report of a minute is worth a look, one of half an hour costs."""

WARN_TRANSACTIONS = 100_000
"""Since the snapshot, where nobody may see its age in seconds."""

MAX_SCALE_FACTOR = 0.05
"""The documents' setting is 0.02; with the server's default of 0.2 they saw the claim rate fall to a third."""

FAST_NAPTIME = 15.0
"""Seconds; the documents measured 5 s to hold the claim rate flat."""

DEAD_FACTOR = 3
"""How many times more may lie dead than does while autovacuum keeps up."""

MIN_DEAD_ROWS = 10_000
MIN_DEAD_SAMPLES = 10


class HealthVerdict(StrEnum):
    """What it comes to, the best first."""

    HEALTHY = "healthy"
    UNKNOWN = "not enough samples yet"
    WARNING = "warning"
    UNHEALTHY = "unhealthy"


_WEIGHT = {verdict: weight for weight, verdict in enumerate(HealthVerdict)}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found."""

    verdict: HealthVerdict
    """What it makes of the whole; healthy: it is said, and changes nothing."""
    reason: str
    advice: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the queue's tables are."""

    verdict: HealthVerdict
    """The worst of the findings; healthy without any."""
    reason: str
    """Why, in one sentence."""
    findings: tuple[Finding, ...]
    """The worst first."""
    samples: int
    sampled_from: datetime | None
    sampled_until: datetime | None
    heaps: tuple[HeapHealth, ...]
    indexes: tuple[IndexHealth, ...]
    holders: tuple[SnapshotHolder, ...]
    """Who holds a snapshot at this moment, the oldest first."""
    autovacuum: AutovacuumSettings


def diagnose(
    series: Sequence[Series],
    holders: Sequence[SnapshotHolder],
    autovacuum: AutovacuumSettings,
    overgrown: Sequence[IndexSize],
) -> Health:
    """Come to a verdict."""
    heaps = tuple(measure_heap(one) for one in series if not one.is_index)
    indexes = tuple(measure_index(one) for one in series if one.is_index)
    moments = {sample.at for one in series for sample in one.samples}
    findings = [
        *_of_holders(holders),
        *_of_settings(autovacuum),
        *_of_hot_table(heaps),
        *(finding for heap in heaps for finding in _of_heap(heap, autovacuum)),
        *(finding for index in indexes for finding in _of_index(index)),
        *(_of_overgrown(index) for index in overgrown),
    ]
    findings.sort(key=lambda finding: -_WEIGHT[finding.verdict])
    verdict = findings[0].verdict if findings else HealthVerdict.HEALTHY
    return Health(
        verdict=verdict,
        reason=_well(heaps, indexes) if verdict is HealthVerdict.HEALTHY else findings[0].reason,
        findings=tuple(findings),
        samples=len(moments),
        sampled_from=min(moments, default=None),
        sampled_until=max(moments, default=None),
        heaps=heaps,
        indexes=indexes,
        holders=tuple(holders),
        autovacuum=autovacuum,
    )


def _well(heaps: Sequence[HeapHealth], indexes: Sequence[IndexHealth]) -> str:
    growths = {heap.growth for heap in heaps} | {index.growth for index in indexes}
    if growths <= {Growth.SMALL, Growth.UNKNOWN}:
        return f"the queue's tables have stayed below {SMALL_BYTES >> 20} MiB each"
    return "each heap stays in its band, and no index grows without its rows"


def _of_holders(holders: Sequence[SnapshotHolder]) -> Iterator[Finding]:
    for holder in holders:
        if holder.seconds is None:
            is_old, is_ill = holder.transactions >= WARN_TRANSACTIONS, False
            age = f"for {holder.transactions:,} transactions"
        else:
            is_old, is_ill = holder.seconds >= WARN_SNAPSHOT, holder.seconds >= ILL_SNAPSHOT
            age = f"for {_duration(holder.seconds)}"
        if is_old:
            reason = f"{holder.described} has held a snapshot {age}: vacuum removes nothing that died since"
            yield Finding(
                verdict=HealthVerdict.UNHEALTHY if is_ill else HealthVerdict.WARNING,
                reason=reason,
                advice=holder.advice,
            )
    hidden = sum(holder.is_hidden for holder in holders)
    if hidden:
        reason = f"this role may not see for how long {hidden} of the snapshots are held"
        yield _note(reason, "GRANT pg_read_all_stats to it")


def _of_settings(autovacuum: AutovacuumSettings) -> Iterator[Finding]:
    if not autovacuum.is_enabled:
        reason = "autovacuum is off on the server: dead rows are never removed"
        yield _ill(reason, "set autovacuum and track_counts to on")
    off = [table.table for table in autovacuum.tables if not table.is_enabled]
    if off:
        yield _ill(f"autovacuum is off on {_listed(off)}", "ALTER TABLE ... RESET (autovacuum_enabled)")
    coarse = [table.table for table in autovacuum.tables if table.scale_factor > MAX_SCALE_FACTOR]
    if coarse:
        reason = f"on {_listed(coarse)} autovacuum waits until a large part of the rows is dead"
        yield _warning(reason, "ALTER TABLE ... SET (autovacuum_vacuum_scale_factor = 0.02)")
    if autovacuum.naptime > FAST_NAPTIME:
        reason = f"autovacuum_naptime is {autovacuum.naptime:g} s: no table is vacuumed more often"
        yield _note(reason, "at a thousand messages a second and more, set it to 5 to 15 s")


def _of_hot_table(heaps: Sequence[HeapHealth]) -> Iterator[Finding]:
    hot = next((heap for heap in heaps if heap.relation == HOT_TABLE), None)
    if hot is None:
        yield _too_few(HOT_TABLE, "it has no samples, or has never had a row")
    elif hot.growth is Growth.FILLING:
        yield _too_few(HOT_TABLE, "it still fills: nothing was handled and vacuumed since the samples began")
    elif hot.growth is Growth.UNKNOWN and hot.peak_ever_bytes < SMALL_BYTES:
        yield _too_few(HOT_TABLE, hot.lacking)


def _of_heap(heap: HeapHealth, autovacuum: AutovacuumSettings) -> Iterator[Finding]:
    if heap.growth is Growth.UNKNOWN and heap.peak_ever_bytes >= SMALL_BYTES:
        yield _too_few(heap.relation, heap.lacking)
    elif heap.growth is Growth.GROWING:
        reason = (
            f"the heap of {heap.relation} still sets new peaks after {_duration(heap.steady_seconds)}: it is at "
            f"{_size(heap.bytes)}, and its rows do not explain it"
        )
        yield _ill(reason, "look for an old snapshot first, then whether autovacuum comes often enough")
    elif heap.growth is Growth.GROWING_WITH_ROWS and heap.relation in BACKLOGS:
        reason = f"{heap.relation} grows with its rows: more comes in than is taken out"
        yield _warning(reason, BACKLOGS[heap.relation])
    table = next((table for table in autovacuum.tables if table.table == heap.table), None)
    if table is None or heap.samples < MIN_DEAD_SAMPLES:
        return
    # The point at which a vacuum is due, and what dies until one has come.
    usual = table.threshold + table.scale_factor * heap.live_rows
    usual += heap.removed_per_second * 2 * autovacuum.naptime
    if heap.dead_rows >= max(MIN_DEAD_ROWS, DEAD_FACTOR * usual):
        reason = (
            f"{heap.relation} has {heap.dead_rows:,} dead rows (a median) beside {heap.live_rows:,} live ones: "
            "vacuum does not keep up, or may not remove them"
        )
        yield _warning(reason, "look for an old snapshot; lower autovacuum_naptime, raise autovacuum_max_workers")


def _of_index(index: IndexHealth) -> Iterator[Finding]:
    if index.growth is Growth.GROWING and index.bytes_per_hour is not None:
        reason = (
            f"the index {index.relation} grows by {_size(index.bytes_per_hour)} an hour and is at "
            f"{_size(index.bytes)}: its rows do not explain it"
        )
        yield _warning(reason, "Maintenance rebuilds it when it is far too large; REINDEX INDEX CONCURRENTLY now")
    elif index.growth is Growth.UNKNOWN and index.bytes >= SMALL_BYTES:
        yield _too_few(index.relation, index.lacking)


def _of_overgrown(index: IndexSize) -> Finding:
    needed = _size(index.needed_bytes)
    reason = f"the index {index.name} takes {_size(index.bytes)}, and its live rows need about {needed}"
    if index.is_ours:
        advice = "Maintenance rebuilds it within ten minutes; where it cannot, through a pooler, its log says so"
    else:
        advice = f"as its owner: REINDEX INDEX CONCURRENTLY {index.schema}.{index.name}"
    return _warning(reason, advice)


def _ill(reason: str, advice: str) -> Finding:
    return Finding(verdict=HealthVerdict.UNHEALTHY, reason=reason, advice=advice)


def _warning(reason: str, advice: str) -> Finding:
    return Finding(verdict=HealthVerdict.WARNING, reason=reason, advice=advice)


def _note(reason: str, advice: str) -> Finding:
    return Finding(verdict=HealthVerdict.HEALTHY, reason=reason, advice=advice)


def _too_few(relation: str, lacking: str) -> Finding:
    reason = f"{relation} cannot be judged yet: {lacking}"
    advice = "leave `tenantq bridge run` running, which takes a sample each half minute, or give --watch-for"
    return Finding(verdict=HealthVerdict.UNKNOWN, reason=reason, advice=advice)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _size(count: float) -> str:
    """Return bytes for people, in decimal megabytes as the documents have them."""
    return f"{count / 1_000_000:,.1f} MB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
