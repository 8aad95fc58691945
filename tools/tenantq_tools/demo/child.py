"""The demo's child processes: `python -m tenantq_tools.demo.child worker|forwarder STORE LEDGER DSN JOURNAL`."""

from __future__ import annotations

import sys
from pathlib import Path

import tenantq
from tenantq_bridge import Forwarder, PostgresQueue
from tenantq_tools.cli._signals import on_signals
from tenantq_tools.demo.shop import SCHEMA, make_worker


def main() -> None:
    """Run one role until SIGTERM."""
    role, store_path, ledger_path, dsn, journal = sys.argv[1:]
    with tenantq.open(store_path) as store, PostgresQueue(dsn, schema=SCHEMA) as queue:
        if role == "worker":
            with tenantq.open(ledger_path) as ledger:
                make_worker(store, ledger, queue, Path(journal)).run()
        else:
            forwarder = Forwarder(store, queue)
            with on_signals(forwarder.request_stop):
                forwarder.run()


if __name__ == "__main__":
    main()
