"""A worker that is told to stop stops, however early it is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tenantq


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tenantq.Worker]:
    with tenantq.open(tmp_path / "store") as store:
        worker = tenantq.Worker(store, concurrency=1)
        worker.on("jobs")(lambda message: None)
        yield worker


def run_told_early(worker: tenantq.Worker, monkeypatch: pytest.MonkeyPatch, tell: Callable[[], object]) -> bool:
    """Tell a worker to stop while it begins to run; say whether that still holds when it has begun."""
    start = worker.start
    was_heard: list[bool] = []

    def start_late() -> tenantq.Worker:
        tell()
        start()
        was_heard.append(not worker._requests.empty())
        worker.request_stop()
        return worker

    monkeypatch.setattr(worker, "start", start_late)
    worker.run()
    return was_heard == [True]


def test_a_stop_that_is_asked_for_before_the_run_holds(
    worker: tenantq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.request_stop()
    assert run_told_early(worker, monkeypatch, lambda: None)


def test_a_signal_while_the_threads_start_holds(worker: tenantq.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_told_early(worker, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM))


def test_a_worker_that_was_stopped_can_run_again(worker: tenantq.Worker) -> None:
    with worker:
        pass
    worker.store.tenant("acme").enqueue("jobs", 1)
    done: list[int] = []

    def handle(message: tenantq.Message[int]) -> None:
        done.append(message.payload)
        worker.request_stop()

    worker.on("more")(handle)
    worker.store.tenant("acme").enqueue("more", 2)
    worker.run()
    assert done == [2]


def test_a_signal_whose_handler_runs_late_is_heeded(
    worker: tenantq.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in the moment before the main thread blocks is only handled when it wakes by itself."""
    waits: list[float] = []
    requests = worker._requests

    class Impatient:
        def get(self, timeout: float) -> None:
            waits.append(timeout)
            if len(waits) == 3:
                worker.request_stop()
            requests.get(timeout=0.001)

        put = staticmethod(requests.put)

    monkeypatch.setattr(worker, "_requests", Impatient())
    worker.run()
    assert len(waits) == 3
    assert max(waits) <= 0.5
