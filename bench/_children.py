"""The processes of a trial: they begin together, know when they are measured, and leave a log each."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

__all__ = ["Crew", "Log", "Seat", "Window", "reason_of"]

CONTEXT = multiprocessing.get_context("forkserver")
"""A child is forked from a process that has opened nothing: fast, and no file is inherited."""

CONTEXT.set_forkserver_preload(["bench._load", "bench._steady", "psycopg", "tenantq_bridge"])
"""What cannot be imported is left out: a hundred children must not each import for themselves."""

WARM_UP, MEASURE, STOP = range(3)

START_TIMEOUT = 60.0
JOIN_TIMEOUT = 30.0


class Log(msgspec.Struct, kw_only=True):
    """What one process has to say about its trial."""

    latencies: dict[str, list[int]] = {}
    """Nanoseconds, by what took them; of the measured window only."""
    errors: dict[str, int] = {}
    """How often each type of error was met, over the whole trial."""
    numbers: dict[str, float] = {}

    def error(self, exc: BaseException) -> None:
        """Count an error."""
        name = type(exc).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


class Window(msgspec.Struct, frozen=True):
    """The measured part of a trial."""

    seconds: float
    counts: list[int]
    """What each process counted in it, in the order of their starts."""


class Seat:
    """A process's place in its crew."""

    def __init__(self, phase: Any, counts: Any, barrier: Any, index: int) -> None:
        self._phase = phase
        self._counts = counts
        self._barrier = barrier
        self._index = index

    def ready(self) -> None:
        """Wait until all the others are ready too."""
        self._barrier.wait(START_TIMEOUT)

    def fail(self) -> None:
        """Let nobody wait for this process."""
        self._barrier.abort()

    @property
    def is_stopped(self) -> bool:
        """Whether the trial is over."""
        return bool(self._phase.value == STOP)

    @property
    def is_measured(self) -> bool:
        """Whether this is the measured window."""
        return bool(self._phase.value == MEASURE)

    def count(self, number: int) -> None:
        """Add to this process's count."""
        self._counts[self._index] += number

    def counted(self) -> list[int]:
        """Return the counts of all processes so far."""
        return list(self._counts)


class Crew:
    """The processes of one trial. A context manager that stops what is left of them."""

    def __init__(self, size: int, folder: Path) -> None:
        self._folder = folder
        self._phase = CONTEXT.RawValue(ctypes.c_int, WARM_UP)
        self._counts = CONTEXT.RawArray(ctypes.c_int64, size)
        self._barrier = CONTEXT.Barrier(size + 1)
        self._children: list[Any] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, body: Callable[..., Log], *arguments: Any) -> None:
        """Start a process that runs `body(seat, *arguments)`, a function of a module."""
        index = len(self._children)
        seat = Seat(self._phase, self._counts, self._barrier, index)
        child = CONTEXT.Process(target=_run, args=(seat, self._path(index), body, arguments), daemon=True)
        child.start()
        self._children.append(child)

    @property
    def pids(self) -> list[int]:
        """The process ids, in the order of their starts."""
        return [int(child.pid) for child in self._children]

    def counted(self) -> list[int]:
        """Return the counts of all processes so far."""
        return list(self._counts)

    def go(self, warm_up: float) -> None:
        """Let all begin at once, and let the warm-up pass."""
        try:
            self._barrier.wait(START_TIMEOUT)
        except Exception:
            self._raise_failures()
            raise
        time.sleep(warm_up)

    def measure(self, seconds: float) -> Window:
        """Measure for so long."""
        before, started = self.counted(), time.monotonic()
        self._phase.value = MEASURE
        time.sleep(seconds)
        after, ended = self.counted(), time.monotonic()
        counts = [late - early for early, late in zip(before, after, strict=True)]
        return Window(ended - started, counts)

    def stop(self) -> list[Log]:
        """End the trial; return the logs, in the order of the starts."""
        self._phase.value = STOP
        ends = time.monotonic() + JOIN_TIMEOUT
        for child in self._children:
            child.join(max(0.0, ends - time.monotonic()))
        self._raise_failures()
        stuck = sum(child.is_alive() for child in self._children)
        if stuck:
            raise TimeoutError(f"{stuck} processes did not end within {JOIN_TIMEOUT:g} s, and were ended")
        return [
            msgspec.json.decode(self._path(index).read_bytes(), type=Log) for index in range(len(self._children))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._children:
            if child.is_alive():
                child.kill()
            child.join()

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.json"

    def _raise_failures(self) -> None:
        for index in range(len(self._children)):
            with contextlib.suppress(FileNotFoundError):
                raise RuntimeError(self._path(index).with_suffix(".error").read_text(encoding="utf-8"))


def reason_of(error: BaseException) -> str:
    """Return the last line of what an error says: the error itself, where it is a child's traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _run(seat: Seat, path: Path, body: Callable[..., Log], arguments: tuple[Any, ...]) -> None:
    try:
        log = body(seat, *arguments)
    except BaseException:
        path.with_suffix(".error").write_text(traceback.format_exc(), encoding="utf-8")
        seat.fail()
        raise SystemExit(1) from None
    path.write_bytes(msgspec.json.encode(log))
