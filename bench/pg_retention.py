"""How large does a queue in Postgres become at a fixed rate, and does it stay in its band over many cycles?

The documents' retention shape (pg-boss's: a uuid for a key, each state an update, done jobs deleted by age),
with the settings that they ship; and PostgresQueue, which deletes what is acked, with the bridge's
maintenance. 2,000 messages a second (`--rate`) for a minute (`--minutes`), which is twenty cycles of the
retention. The bridge's own analysis tells the heap's band behind the fill, how far it ended below its peak,
each index's slope, dead rows as a median, and its verdict. It judges hours: so a cycle is told to it as an
hour, which the documents' retention was.

The notes say what a compressed window hides. The documents' verdicts took nine to eleven cycles of an hour:
`--minutes 1200` is that run.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from bench._children import Crew, reason_of
from bench._claimers import BATCH, open_queue
from bench._jobs_table import TUNED_SERVER
from bench._measure import paired
from bench._options import Options
from bench._report import Figure, Result, Row
from bench._retained import LEAF, RETAINED, SCHEMA, prune
from bench._servers import Server, server
from bench._steady import Load, size_of, start
from bench._watch import Size, Table, Watch
from tenantq_bridge.series import Sample, Series, measure_heap, measure_index

CYCLES = 20

CYCLE = 3_600.0
"""Seconds that the analysis is told that a cycle took: the documents' retention."""

SAMPLES = 10
"""In a cycle."""

DELETES = 10
"""In a cycle: the documents' maintenance ran each 30 seconds of an hour."""

WORKERS = 2

OURS = f"tenantq, batches of {BATCH}"

TABLES = {RETAINED: LEAF, OURS: "tenantq.ready"}

HIDDEN = (
    "a compressed window hides the cadence of vacuum: it comes once in autovacuum_naptime and no more often, so a "
    "retention of seconds sees one vacuum a cycle or none where an hour sees hundreds, and settings that differ "
    "by a quarter of the heap show no difference",
    "it hides the cache, in which all of a small table lies, and the indexes, which crept by megabytes an hour",
    "a cycle is told to the analysis as an hour, so its verdict is about cycles and not about time",
    "tenantq keeps nothing that is done, so its size is that of what waits; the documents' shape serves the done "
    "jobs of one retention too",
)


class Trial(msgspec.Struct, kw_only=True):
    """What one load found."""

    table: Table
    put: int
    taken: int
    seconds: float


def run(options: Options) -> Result:
    seconds = options.pick(options.minutes * 60, 2.0)
    rate = options.pick(options.rate, 200.0)
    parameters = {"load_seconds": seconds, "cycles": CYCLES, "retention_seconds": seconds / CYCLES, "rate": rate}
    result = Result(rows=[], parameters=parameters)
    found: dict[str, Trial] = {}
    with server(options) as postgres:
        postgres.configure(TUNED_SERVER)
        result.parameters |= {"postgres": postgres.version, **TUNED_SERVER}
        for name in TABLES:
            if options.only in name:
                try:
                    found[name] = measure(postgres, name, rate, seconds, options)
                except Exception as exc:
                    result.notes.append(f"{name}: {reason_of(exc)}")
    for name, trial in found.items():
        result.rows += rows_of(name, trial)
    if len(found) == len(TABLES):
        peaks = [sum(found[name].table.peaks(0, float("inf")).values()) for name in TABLES]
        result.ratios.append(
            paired("bytes of heap and indexes at their peaks, tenantq / documents' retention", *peaks_of(peaks))
        )
    result.notes += HIDDEN
    result.figure = figure_of(found)
    return result


def peaks_of(peaks: list[int]) -> tuple[list[float], list[float]]:
    """Return ours, and theirs."""
    theirs, ours = peaks
    return [float(ours)], [float(theirs)]


def measure(postgres: Server, name: str, rate: float, seconds: float, options: Options) -> Trial:
    """Run one load in a new database."""
    retention = seconds / CYCLES
    with postgres.database("trial") as dsn, options.directory() as place:
        if name == RETAINED:
            postgres.query(SCHEMA, "trial")
        else:
            queue = open_queue(dsn)
            queue.migrate()
            queue.close()
        load = Load(
            claimer=name,
            dsn=dsn,
            rate=rate,
            slice_seconds=seconds,
            workers=WORKERS,
            batch=BATCH,
            is_maintained=name == OURS,
        )
        with Crew(size_of(load) + (name == RETAINED), place / "logs") as crew:
            start(crew, load)
            if name == RETAINED:
                crew.add(prune, dsn, retention, retention / DELETES)
            crew.go(0)  # the fill is part of what is watched
            with Watch(dsn, TABLES[name], interval=retention / SAMPLES) as watch:
                window = crew.measure(seconds)
            crew.stop()
    return Trial(
        table=watch.table,
        put=window.counts[WORKERS],
        taken=sum(window.counts[:WORKERS]),
        seconds=window.seconds,
    )


def series_of(relation: str, table: str, sizes: list[Size], seconds: float, *, is_index: bool) -> Series:
    """Return samples as the bridge takes them, each cycle stretched to the documents' hour."""
    began, stretch = sizes[0].at, CYCLE * CYCLES / seconds
    samples = tuple(
        Sample(
            at=began + timedelta(seconds=(size.seconds - sizes[0].seconds) * stretch),
            bytes=size.bytes,
            live_rows=size.live_rows,
            dead_rows=size.dead_rows,
            removed_rows=size.removed_rows,
            vacuums=size.vacuums,
        )
        for size in sizes
    )
    return Series(relation=relation, table=table, is_index=is_index, samples=samples)


def rows_of(name: str, trial: Trial) -> list[Row]:
    """Return a line for the heap and one for each index."""
    table = trial.table
    heap = measure_heap(series_of(table.name, table.name, table.heap, trial.seconds, is_index=False))
    common = {
        "queue": name,
        "messages_per_s": round(trial.taken / trial.seconds),
        "waiting": trial.put - trial.taken,
    }
    rows: list[Row] = [
        {
            **common,
            "relation": f"{table.name}, heap",
            "trough_mb": heap.trough_bytes / 1e6,
            "peak_mb": heap.peak_bytes / 1e6,
            "band_percent": None if heap.band is None else 100 * heap.band,
            "below_peak_percent": 100 * heap.below_peak,
            "end_mb": heap.bytes / 1e6,
            "slope_kb_per_cycle": None,
            "vacuums": heap.cycles,
            "dead_rows": heap.dead_rows,
            "verdict": str(heap.growth),
        }
    ]
    for relation, sizes in table.indexes.items():
        index = measure_index(series_of(relation, table.name, sizes, trial.seconds, is_index=True))
        rows.append(
            rows[0]
            | {
                "relation": f"{relation}, index",
                "trough_mb": None,
                "peak_mb": None,
                "band_percent": None,
                "below_peak_percent": None,
                "end_mb": index.bytes / 1e6,
                "slope_kb_per_cycle": None if index.bytes_per_hour is None else index.bytes_per_hour / 1e3,
                "verdict": str(index.growth),
            }
        )
    return rows


def figure_of(found: dict[str, Trial]) -> Figure | None:
    """Return the sizes over the cycles."""
    series: dict[str, list[float | None]] = {}
    for name, trial in found.items():
        table = trial.table
        for relation, sizes in {f"{table.name}, heap": table.heap, **table.indexes}.items():
            at_end = {int(size.seconds / trial.seconds * CYCLES): size.bytes / 1e6 for size in sizes}
            series[f"{name}: {relation}"] = [at_end.get(cycle) for cycle in range(CYCLES)]
    return Figure(
        title="Sizes at the end of each cycle of the retention",
        x_label="cycles",
        y_label="megabytes",
        x=[cycle + 1 for cycle in range(CYCLES)],
        series=series,
        is_log=True,
        lower_is_better=True,
    )
