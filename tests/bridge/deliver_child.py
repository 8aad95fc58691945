"""A deliverer in a process of its own, which kills itself at a named point: run by the crash tests."""

from __future__ import annotations

import os
import signal
import sys

import tenantq
from tenantq_bridge import Deliverer, PostgresQueue


def main(root: str, dsn: str, point: str, rounds: int) -> None:
    """Deliver until there is nothing left, or die at the point when it is reached for the given time."""
    reached = 0

    def failpoint(step: str) -> None:
        nonlocal reached
        if step == point:
            reached += 1
            if reached == rounds:
                os.kill(os.getpid(), signal.SIGKILL)

    with tenantq.open(root) as store, PostgresQueue(dsn) as queue:
        deliverer = Deliverer(store, queue, host="a", round_rows=7, tenant_rows=3, failpoint=failpoint)
        while deliverer.run_once():
            pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
