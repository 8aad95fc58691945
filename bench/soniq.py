"""How fast do worker processes run no-op jobs that were enqueued while they waited?

The form of Soniq's published benchmark: W worker processes of concurrency C wait, N no-op jobs are enqueued in
batches. Jobs a second is N by the time from the first enqueue to the last job's start; latency is from a
job's enqueue to its start, so it includes the wait in the backlog.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

import tenantq
from bench._children import Crew, Log, Seat
from bench._contenders import contender
from bench._documents import IDLE_SLEEP, DocumentsQueue
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench._workload import EPOCH, Job, Jobs

JOBS = (1_000, 10_000, 50_000)

WORKERS, CONCURRENCY = 2, 8

CHUNK = 1_000

CONTENDERS = ("documents' loop", "tenantq worker")

PRODUCERS = {"documents' loop": "documents' loop", "tenantq worker": "tenantq batched"}
"""What enqueues for each, many in one transaction."""

PUBLISHED = {1_000: "1,682/s", 10_000: "1,136/s", 50_000: "296/s"}
"""Soniq's jobs a second, on Postgres 16 and an M1 Pro."""

TIMEOUT = 300.0


def run(options: Options) -> Result:
    rows: list[Row] = []
    result = Result(rows=rows, parameters={"workers": WORKERS, "concurrency": CONCURRENCY})
    for count in options.pick(JOBS, (200,)):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
        for number in range(options.iterations + (0 if options.is_smoke else 1)):
            for name in CONTENDERS:
                trial = run_once(name, count, options)
                if number or options.is_smoke:  # the first is the warm-up
                    found[name].append(trial)
        for name, trials in found.items():
            row: Row = {"jobs": count, "contender": name}
            row |= {key: round(median([trial[key] for trial in trials]), 2) for key in trials[0]}
            rows.append(row | {"published_soniq": PUBLISHED.get(count, "-")})
        ours, theirs = ([trial["jobs_per_s"] for trial in found[name]] for name in reversed(CONTENDERS))
        result.ratios.append(paired(f"jobs/s, tenantq worker / documents' loop, {count:,} jobs", ours, theirs))
    result.figure = chart(
        rows,
        x="jobs",
        y="jobs_per_s",
        by="contender",
        title=f"{WORKERS} worker processes, concurrency {CONCURRENCY}",
        y_label="jobs/s",
        is_line=False,
    )
    return result


def run_once(name: str, count: int, options: Options) -> dict[str, float]:
    """Return the figures of one run."""
    with options.directory() as directory, Crew(WORKERS, directory / "logs") as crew:
        queue = contender(PRODUCERS[name], str(directory), options.durability)
        queue.fill(0)
        for _ in range(WORKERS):
            crew.add(work_loop if name == CONTENDERS[0] else work, str(directory), options.durability)
        crew.go(0.2)
        jobs = Jobs()
        started = time.monotonic_ns()
        for chunk in jobs.chunks(count, CHUNK):
            queue.put(chunk)
        enqueued = time.monotonic_ns()
        while sum(crew.counted()) < count and time.monotonic_ns() - started < TIMEOUT * 1e9:
            time.sleep(0.002)
        logs = crew.stop()
        queue.close()
    starts = [start for log in logs for start in log.latencies["started"]]
    waits = sorted(wait for log in logs for wait in log.latencies["waited"])
    assert len(starts) == count, f"{len(starts)} of {count} jobs were run"
    return {
        "jobs_per_s": count / (max(starts) - started) * 1e9,
        "enqueued_per_s": count / (enqueued - started) * 1e9,
        **{f"p{percent}_ms": percentile(waits, percent) / 1e6 for percent in (50, 95, 99)},
    }


class Starts:
    """The starts of the jobs of one process, told by many threads."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._lock = threading.Lock()
        self._log = Log(latencies={"started": [], "waited": []})

    def add(self, job: Job) -> None:
        """A job has started."""
        now = time.monotonic_ns()
        with self._lock:
            self._log.latencies["started"].append(now)
            self._log.latencies["waited"].append(now + EPOCH - job.sent)
            self._seat.count(1)

    def log(self) -> Log:
        """Return what the process has to say."""
        return self._log


def work(seat: Seat, place: str, durability: str) -> Log:
    """Be a worker process of tenantq."""
    starts = Starts(seat)
    with tenantq.open(f"{place}/store", durability=durability) as store:
        worker = tenantq.Worker(store, concurrency=CONCURRENCY)

        @worker.on(Job)
        def handle(message: tenantq.Message[Job]) -> None:
            starts.add(message.payload)

        with worker:
            seat.ready()
            while not seat.is_stopped:
                time.sleep(0.01)
    return starts.log()


def work_loop(seat: Seat, place: str, durability: str) -> Log:
    """Be a process of as many threads, each of which runs the documents' loop."""
    starts = Starts(seat)
    decode = msgspec.json.Decoder(Job).decode

    def loop(number: int) -> None:
        queue = DocumentsQueue(Path(place) / "queue.db", durability=durability, worker=f"{os.getpid()}-{number}")
        while not seat.is_stopped:
            claimed = queue.claim()
            if claimed is None:
                time.sleep(IDLE_SLEEP)
                continue
            starts.add(decode(claimed[1]))
            queue.ack(claimed[0])
        queue.close()

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(CONCURRENCY)]
    for thread in threads:
        thread.start()
    seat.ready()
    for thread in threads:
        thread.join()
    return starts.log()
