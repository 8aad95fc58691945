"""How fast are enqueue, claim and ack, beside other queues in Postgres, each by its own documented fast path?

Some thousand jobs that do nothing are enqueued, in the largest batches that a peer's documentation has, and
then handled by one process of the peer's own worker; the rate is until the last job. They take turns, each in
a new database of the same server with synchronous_commit on and every table logged.

Left out: the latency of a job in an empty queue, several workers, and what each peer does beyond this: they
keep results, run cron, retry, show a dashboard. A peer that is not installed, fails or does not end is named
with its reason.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec

import tenantq
from bench._measure import median, paired
from bench._options import Options
from bench._pg_peers import PEERS, Found, missing
from bench._plots import chart
from bench._report import Result, Row
from bench._servers import Server, server

JOBS = 10_000

GRACE = 20.0
"""Seconds for a peer's start and its tables, over the time of its two phases; then it is ended."""


class PeerFailed(RuntimeError):
    """A peer did not run."""


def run(options: Options) -> Result:
    jobs = options.pick(JOBS, 200)
    seconds = options.pick(5 * options.window + 5, 5.0)
    failures = {name: reason for name in PEERS if (reason := missing(name))}
    found: dict[str, list[Found]] = {name: [] for name in PEERS}
    with server(options) as postgres:
        version = postgres.version
        for _ in range(options.iterations):
            for name in PEERS:
                if name in failures:
                    continue
                try:
                    found[name].append(measure(postgres, name, jobs, seconds))
                except PeerFailed as exc:
                    failures[name] = str(exc)
    rows = [row_of(name, found[name], failures.get(name)) for name in PEERS]
    result = Result(
        rows=rows,
        parameters={"postgres": version, "jobs": jobs, "seconds_at_most": seconds},
        notes=[f"{name}: {peer.note}" for name, peer in PEERS.items()],
        figure=chart(
            [
                {"peer": row["peer"], "what": what, "rate": row[f"{what}_per_s"]}
                for row in rows
                for what in ("enqueue", "handle")
            ],
            x="peer",
            y="rate",
            by="what",
            title="Jobs through queues in Postgres",
            y_label="jobs/s",
            is_line=False,
            is_log=True,
        ),
    )
    add_ratios(result, found)
    return result


def measure(postgres: Server, name: str, jobs: int, seconds: float) -> Found:
    """Run one peer once, in a process of its own and a database of its own."""
    with postgres.database("peer") as dsn:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bench._pg_peers", name, dsn, str(jobs), str(seconds)],
                cwd=Path(__file__).resolve().parent.parent,
                capture_output=True,
                check=False,
                timeout=2 * seconds + GRACE,
            )
        except subprocess.TimeoutExpired:
            raise PeerFailed("was ended: it did not come back") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["no word"]
        raise PeerFailed(f"failed: {reason[-1][:120]}")
    result = msgspec.json.decode(lines[-1], type=Found)
    if not result.handled:
        raise PeerFailed(f"handled nothing in {seconds:g} s")
    return result


def row_of(name: str, trials: list[Found], failure: str | None) -> Row:
    """Return one line of the table."""
    package = next(iter(PEERS[name].packages), "")
    try:
        version = metadata.version(package) if package else tenantq.__version__ if name == "tenantq" else "-"
    except metadata.PackageNotFoundError:
        version = "-"
    return {
        "peer": name,
        "version": version,
        "enqueue_per_s": round(median(enqueued(trials))) if trials else None,
        "handle_per_s": round(median(handled(trials))) if trials else None,
        "both_per_s": round(median(both(trials))) if trials else None,
        "handled": trials[-1].handled if trials else 0,
        "state": failure or "ran",
    }


def enqueued(trials: list[Found]) -> list[float]:
    """Return the jobs a second that were enqueued."""
    return [trial.enqueued / trial.enqueue_seconds for trial in trials]


def handled(trials: list[Found]) -> list[float]:
    """Return the jobs a second that were claimed and acked."""
    return [trial.handled / trial.handle_seconds for trial in trials]


def both(trials: list[Found]) -> list[float]:
    """Return the jobs a second that one process enqueues, claims and acks."""
    return [1 / (1 / put + 1 / taken) for put, taken in zip(enqueued(trials), handled(trials), strict=True)]


def add_ratios(result: Result, found: dict[str, list[Found]]) -> None:
    """Compare ours with the best peer of each kind, and with the documents' loop."""
    others = [name for name in PEERS if name not in {"tenantq", "documents' loop"} and found[name]]
    for what, rates, target in (
        ("enqueue, claim and ack", both, 2.0),
        ("claim and ack", handled, 2.0),
        ("enqueue", enqueued, None),
    ):
        for name in [*sorted(others, key=lambda one: -median(rates(found[one])))[:1], "documents' loop"]:
            ours, theirs = rates(found["tenantq"]), rates(found[name])
            if not ours or not theirs:
                continue
            is_best = name != "documents' loop"
            result.ratios.append(
                paired(
                    f"{what}: tenantq batched / {name}" + (", the best peer" if is_best else ""),
                    ours[: len(theirs)],
                    theirs[: len(ours)],
                    at_least=target if is_best else None,
                )
            )
