"""A process that emits events over tenants at a rate, and prints how many: `python -m bench._emitter`."""

from __future__ import annotations

import random
import sys
import time

import tenantq


def main(root: str, tenants: int, rate: int, seconds: float) -> None:
    """Emit until the time is over."""
    chosen = random.Random(1)
    count = 0
    with tenantq.open(root, max_open_tenants=4_000) as store:
        started = time.perf_counter()
        while count < rate * seconds:
            ahead = started + count / rate - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            store.tenant(f"tenant-{chosen.randrange(tenants)}").emit("order.placed", {"order": count})
            count += 1
    print(count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
