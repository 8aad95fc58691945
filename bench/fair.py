"""Does each of many processes on one file get its turn, how soon, and what does that cost?

All of them write as fast as they can, in transactions of 2 ms and in short ones. Beside tenantq runs the same
transaction on raw apsw: with SQLite's own busy handler, with random waits between two tries, and with those and
a rest of 1 ms after every commit.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from pathlib import Path

import apsw

import tenantq
from bench._children import Crew, Log, Seat
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row

POINTS = ((8, 2.0), (8, 0.0), (2, 0.0), (1, 0.0))
"""Processes, and the milliseconds that each transaction takes beside its one row."""

BODY = "x" * 256

REST = 0.001


class Writer(ABC):
    """One process's way to the file."""

    @abstractmethod
    def __init__(self, place: Path) -> None:
        """Open it."""

    @abstractmethod
    def write(self, hold: float) -> int:
        """Commit one row in a transaction that takes so long; return the nanoseconds until it began."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""


class Raw(Writer):
    """The same transaction without the library, and SQLite's own busy handler."""

    rest = 0.0

    def __init__(self, place: Path) -> None:
        self._connection = apsw.Connection(str(place / "raw.db"))
        self._connection.set_busy_timeout(60_000)
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 10000"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, body TEXT)")

    def write(self, hold: float) -> int:
        asked = time.perf_counter_ns()
        self._connection.execute("BEGIN IMMEDIATE")
        waited = time.perf_counter_ns() - asked
        self._connection.execute("INSERT INTO job (body) VALUES (?)", (BODY,))
        if hold:
            time.sleep(hold)
        self._connection.execute("COMMIT")
        if self.rest:
            time.sleep(self.rest)
        return waited

    def close(self) -> None:
        self._connection.close()


class Random(Raw):
    """Random waits between two tries for the lock."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._connection.set_busy_handler(self._wait)

    def _wait(self, _tries: int) -> bool:
        time.sleep(random.uniform(0.0002, 0.0022))
        return True


class Rested(Random):
    """The same, and a rest after every commit."""

    rest = REST


class Tenantq(Writer):
    """A transaction of the library."""

    def __init__(self, place: Path) -> None:
        self._store = tenantq.open(place / "store", busy_timeout=60)
        self._tenant = self._store.tenant("acme")

    def write(self, hold: float) -> int:
        asked = time.perf_counter_ns()
        with self._tenant.transaction() as tx:
            waited = time.perf_counter_ns() - asked
            tx.enqueue("fair", BODY)
            if hold:
                time.sleep(hold)
        return waited

    def close(self) -> None:
        self._store.close()


WRITERS: dict[str, type[Writer]] = {
    "SQLite's handler": Raw,
    "random waits": Random,
    "random waits, 1 ms rest": Rested,
    "tenantq": Tenantq,
}


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"body_bytes": len(BODY)})
    for processes, hold_ms in options.pick(POINTS, ((2, 2.0), (2, 0.0))):
        trials: dict[str, list[Row]] = {name: [] for name in WRITERS}
        for _ in range(options.iterations):
            for name in WRITERS:
                trials[name].append(trial(name, processes, hold_ms, options))
        for name, found in trials.items():
            figures = {
                figure: median([row[figure] for row in found]) for figure in found[0] if figure != "longest_ms"
            }
            longest = max(row["longest_ms"] for row in found)
            rows.append(
                {"processes": processes, "hold_ms": hold_ms, "writer": name, **figures, "longest_ms": longest}
            )
        if processes > 1:
            result.ratios.append(
                paired(
                    f"the longest wait, tenantq / SQLite's handler, {processes} processes, {hold_ms:g} ms",
                    [row["longest_ms"] for row in trials["tenantq"]],
                    [row["longest_ms"] for row in trials["SQLite's handler"]],
                ),
            )
    result.figure = chart(
        [{**row, "at": f"{row['processes']} x {row['hold_ms']:g} ms"} for row in rows],
        x="at",
        y="longest_ms",
        by="writer",
        title="The longest wait for a turn",
        x_label="processes x transaction",
        y_label="ms",
        is_line=False,
        is_log=True,
        lower_is_better=True,
    )
    return result


def trial(name: str, processes: int, hold_ms: float, options: Options) -> Row:
    """Let so many processes write for a while; return who got what."""
    with options.directory() as directory:
        filling = WRITERS[name](directory)
        filling.write(0)
        filling.close()
        with Crew(processes, directory / "logs") as crew:
            for _ in range(processes):
                crew.add(write, name, str(directory), hold_ms / 1000)
            crew.go(options.warm_up)
            window = crew.measure(options.window)
            logs = crew.stop()
    waits = sorted(wait for log in logs for wait in log.latencies["begin"])
    return {
        "throughput": round(sum(window.counts) / window.seconds),
        "median_ms": percentile(waits, 50) / 1e6,
        "p99_ms": percentile(waits, 99) / 1e6,
        "longest_ms": waits[-1] / 1e6 if waits else 0.0,
        "least_served": min(window.counts),
        "most_served": max(window.counts),
    }


def write(seat: Seat, name: str, place: str, hold: float) -> Log:
    """Be one of the processes."""
    writer = WRITERS[name](Path(place))
    waits: list[int] = []
    seat.ready()
    while not seat.is_stopped:
        waited = writer.write(hold)
        if seat.is_measured:
            waits.append(waited)
        seat.count(1)
    writer.close()
    return Log(latencies={"begin": waits})
