"""The process of `startup`: a worker that serves a store until so many messages were handled.

python -m bench._starter STORE EXPECTED
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import msgspec

import tenantq

__all__ = ["QUEUE", "Started"]

QUEUE = "startup"

PATIENCE = 600.0
"""Seconds that it may take."""


class Started(msgspec.Struct, kw_only=True):
    """When the worker came to what, in monotonic seconds."""

    imported: float
    opened: float
    started: float
    first: float
    last: float
    handled: int


def main(place: str, expected: int, imported: float) -> None:
    """Serve, and print when what was done."""
    began: list[float] = []
    is_done = threading.Event()
    with tenantq.open(place) as store:
        worker = tenantq.Worker(store)

        @worker.on(QUEUE)
        def handle(_message: tenantq.Message[Any]) -> None:
            began.append(time.monotonic())
            if len(began) >= expected:
                is_done.set()

        opened = time.monotonic()
        with worker:
            started = time.monotonic()
            is_done.wait(PATIENCE)
    found = Started(
        imported=imported,
        opened=opened,
        started=started,
        first=began[0],
        last=began[expected - 1],
        handled=len(began),
    )
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), time.monotonic())
