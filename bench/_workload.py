"""The messages: the documents' mix of sizes, each with the time at which its producer sent it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import msgspec

import tenantq

__all__ = ["MIX", "QUEUE", "Job", "Jobs", "encode"]

MIX = ((256, 0.70), (1024, 0.25), (8192, 0.05))
"""Bytes of a JSON payload, and their share."""

QUEUE = "bench.job"

CYCLE = 1000
"""Sizes that are drawn once and used in turns, so that drawing them is no part of what is measured."""

EPOCH = 10**18
"""Added to the monotonic clock, so that its nanoseconds always take 19 digits and sizes are exact."""

encode = msgspec.json.Encoder().encode


@tenantq.message(QUEUE)
class Job(msgspec.Struct):
    """A typed message: what a typical job is, an id and some text."""

    sent: int
    """Nanoseconds of the machine's monotonic clock, the same for all its processes."""
    body: str

    @property
    def age(self) -> int:
        """Nanoseconds since it was sent."""
        return time.monotonic_ns() + EPOCH - self.sent


class Jobs:
    """An endless supply of jobs; the same seed gives the same sizes in the same order."""

    def __init__(self, seed: int = 0) -> None:
        chooser = random.Random(seed)
        sizes = chooser.choices([size for size, _ in MIX], [share for _, share in MIX], k=CYCLE)
        frame = len(encode(Job(EPOCH, "")))
        self._bodies = {size: "x" * (size - frame) for size, _ in MIX}
        self._sizes = sizes
        self._at = 0

    def take(self, count: int) -> list[Job]:
        """Return new jobs, sent now."""
        sent = time.monotonic_ns() + EPOCH
        at, sizes, bodies = self._at, self._sizes, self._bodies
        self._at = at + count
        return [Job(sent, bodies[sizes[number % CYCLE]]) for number in range(at, at + count)]

    def encoded(self, count: int) -> list[bytes]:
        """Return new jobs as JSON."""
        return [encode(job) for job in self.take(count)]

    def chunks(self, count: int, size: int = 1000) -> Iterator[list[Job]]:
        """Yield so many jobs, in lists of at most `size`."""
        while count > 0:
            yield self.take(min(size, count))
            count -= size
