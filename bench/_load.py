"""A trial: producers and consumers, each a process, on one queue, at a rate or at a depth."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import _postgres  # noqa: F401 - registers its contenders in each process
from bench._children import Crew, Log, Seat, Window
from bench._contenders import contender
from bench._options import Options
from bench._workload import Job, Jobs

__all__ = ["Plan", "Trial", "run_trial", "run_trials", "start"]

FULL_PAUSE = 0.001
"""Seconds that a producer waits when the queue is as deep as it should be."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial does."""

    contender: str
    place: str
    """A directory, or the address of a server."""
    producers: int = 4
    consumers: int = 4
    depth: int = 5000
    """Filled before the trial, and where there is no rate, held by the producers."""
    rate: float | None = None
    """Messages a second that all producers together offer; None: as many as keep the depth."""
    durability: str = "normal"
    options: dict[str, Any] = {}
    first: int = 0
    """Where its processes begin in their crew: the producers, then the consumers."""

    def enqueued(self, counts: list[int]) -> int:
        """Return what its producers counted."""
        return sum(counts[self.first : self.first + self.producers])

    def received(self, counts: list[int]) -> int:
        """Return what its consumers counted."""
        start = self.first + self.producers
        return sum(counts[start : start + self.consumers])

    def open(self) -> Any:
        """Open the contender in this process."""
        return contender(self.contender, self.place, self.durability, **self.options)


class Trial(msgspec.Struct, kw_only=True):
    """What a trial found."""

    rate: float
    """Messages a second that were received in the window."""
    offered: float
    """Messages a second that were enqueued in it."""
    depth: int
    """Messages in the queue at its end."""
    enqueue: list[int] = []
    dequeue: list[int] = []
    end_to_end: list[int] = []
    errors: dict[str, int] = {}
    wait: list[int] = []
    """The length of each wait for the lock, where the contender knows it; with the warm-up, as the next two."""
    waits: float = 0
    waited: float = 0
    """Seconds."""


def start(crew: Crew, plan: Plan, fill: bool = True) -> None:
    """Make the queue and start the processes of a plan."""
    if fill:
        filling = plan.open()
        filling.fill(plan.depth)
        filling.close()
    for number in range(plan.producers):
        crew.add(produce, plan, number)
    for _ in range(plan.consumers):
        crew.add(consume, plan)


def run_trial(plan: Plan, options: Options, folder: Path) -> Trial:
    """Run a plan once, with its logs in a folder."""
    return run_trials([plan], options, folder)[0]


def run_trials(plans: Sequence[Plan], options: Options, folder: Path) -> list[Trial]:
    """Run plans at the same time, each on a queue of its own."""
    placed: list[Plan] = []
    size = 0
    for plan in plans:
        placed.append(msgspec.structs.replace(plan, first=size))
        size += plan.producers + plan.consumers
    with Crew(size, folder) as crew:
        for plan in placed:
            start(crew, plan)
        crew.go(options.warm_up)
        window = crew.measure(options.window)
        totals = crew.counted()
        logs = crew.stop()
    return [summarise(plan, window, totals, logs) for plan in placed]


def summarise(plan: Plan, window: Window, totals: list[int], logs: list[Log]) -> Trial:
    """Add up what the processes of a plan counted and logged."""
    trial = Trial(
        rate=plan.received(window.counts) / window.seconds,
        offered=plan.enqueued(window.counts) / window.seconds,
        depth=max(0, plan.depth + plan.enqueued(totals) - plan.received(totals)),
    )
    for log in logs[plan.first : plan.first + plan.producers + plan.consumers]:
        trial.enqueue += log.latencies.get("enqueue", [])
        trial.dequeue += log.latencies.get("dequeue", [])
        trial.end_to_end += log.latencies.get("end_to_end", [])
        trial.wait += log.latencies.get("wait", [])
        trial.waits += log.numbers.get("waits", 0)
        trial.waited += log.numbers.get("waited", 0)
        for name, count in log.errors.items():
            trial.errors[name] = trial.errors.get(name, 0) + count
    return trial


def produce(seat: Seat, plan: Plan, number: int) -> Log:
    """Be a producer."""
    queue = plan.open()
    jobs, log, took = Jobs(seed=number), Log(), []
    clock = time.perf_counter_ns
    pace = None if plan.rate is None else plan.rate / plan.producers
    seat.ready()
    started, sent = time.monotonic() + (number / (plan.rate or 1)), 0
    while not seat.is_stopped:
        count = queue.batch
        if pace is None:
            counted = seat.counted()
            if plan.enqueued(counted) >= plan.received(counted):
                time.sleep(FULL_PAUSE)
                continue
        else:
            due = int((time.monotonic() - started) * pace) - sent
            if due <= 0:
                time.sleep(max(0.0, started + (sent + 1) / pace - time.monotonic()))
                continue
            count = min(count, due)
        try:
            before = clock()
            queue.put(jobs.take(count))
            if seat.is_measured:
                took.append(clock() - before)
            sent += count
            seat.count(count)
        except Exception as exc:
            log.error(exc)
            queue.recover()
    return _closed(queue, log, enqueue=took)


def consume(seat: Seat, plan: Plan) -> Log:
    """Be a consumer."""
    queue = plan.open()
    log = Log()
    dequeue: list[int] = []
    end_to_end: list[int] = []

    def got(jobs: list[Job], nanoseconds: int) -> None:
        if seat.is_measured:
            end_to_end.extend(job.age for job in jobs)
            if nanoseconds:
                dequeue.append(nanoseconds)
        seat.count(len(jobs))

    seat.ready()
    queue.serve(got, lambda: seat.is_stopped, log.error)
    return _closed(queue, log, dequeue=dequeue, end_to_end=end_to_end)


def _closed(queue: Any, log: Log, **latencies: list[int]) -> Log:
    queue.close()
    log.latencies = {**latencies, "wait": queue.wait_ns}
    log.numbers = {"waits": float(queue.waits), "waited": queue.waited}
    return log
