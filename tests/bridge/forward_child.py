"""A forwarder in a process of its own, which kills itself at a named point: run by the crash tests."""

from __future__ import annotations

import os
import signal
import sys
import threading

import tenantq
from tenantq_bridge import Forwarder, PgmqTarget, PostgresQueue


def main(root: str, dsn: str, point: str, rounds: int, mode: str) -> None:
    """Forward until there is nothing left, or die at the point when it is reached for the given time.

    mode: "by hand" for a batch after the other, "running" for several at once, "pgmq NAME" for a batch after the
    other to a queue of pgmq.
    """
    reached = 0

    def failpoint(step: str) -> None:
        nonlocal reached
        if step == point:
            reached += 1
            if reached == rounds:
                os.kill(os.getpid(), signal.SIGKILL)

    with tenantq.open(root) as store, PostgresQueue(dsn) as queue:
        _, is_pgmq, name = mode.partition("pgmq ")
        target = PgmqTarget(queue, name) if is_pgmq else queue
        forwarder = Forwarder(store, target, batch_rows=7, tenant_rows=3, failpoint=failpoint)
        if mode == "running":
            with forwarder:
                while any(store.tenant(tenant).outbox.position().pending for tenant in store.tenants()):
                    threading.Event().wait(0.01)
        while forwarder.run_once():
            pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
