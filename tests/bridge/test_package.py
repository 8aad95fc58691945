"""The package as a whole: what it exports, its own example, and a worker that serves it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import msgspec
import pytest

import tenantq
import tenantq_bridge
from tenantq_bridge import Forwarder, PostgresQueue


def test_all_is_sorted_and_is_what_is_public() -> None:
    assert tenantq_bridge.__all__ == sorted(tenantq_bridge.__all__)
    modules = {path.stem for path in Path(tenantq_bridge.__file__).parent.glob("*.py")}
    public = {name for name in vars(tenantq_bridge) if not name.startswith("_")} - modules
    assert public == set(tenantq_bridge.__all__)


def test_one_file_knows_the_driver() -> None:
    package = Path(tenantq_bridge.__file__).parent
    importers = {
        path.name for path in package.glob("*.py") if re.search(r"import psycopg|from psycopg", path.read_text())
    }
    assert importers == {"_postgres.py"}


def test_every_error_is_one_of_tenantqs() -> None:
    for name, value in vars(tenantq_bridge.errors).items():
        if isinstance(value, type) and name in tenantq_bridge.errors.__all__:
            assert issubclass(value, tenantq.TenantqError)
            assert str(value()).startswith((value.__doc__ or "").split("\n")[0])


@pytest.mark.postgres
def test_the_packages_example_runs(
    postgres_dsn: str, store: tenantq.Store, capsys: pytest.CaptureFixture[str]
) -> None:
    with store.tenant("acme").transaction() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    lines = [line for line in (tenantq_bridge.__doc__ or "").splitlines() if line.startswith("    ") or not line]
    code = textwrap.dedent("\n".join(lines)).replace("postgresql://app@db/shop", postgres_dsn)
    names = {"store": store} | {name: getattr(tenantq_bridge, name) for name in tenantq_bridge.__all__}
    exec(code, names)
    queue = names["queue"]
    assert isinstance(queue, PostgresQueue)
    assert queue.stats().queues == ()
    queue.close()
    assert re.match(r"acme billing\.order_placed [0-9a-f-]{36} \{'order': 42\}", capsys.readouterr().out)


@pytest.mark.postgres
def test_a_worker_handles_what_crossed_hosts(store: tenantq.Store, postgres_queue: PostgresQueue) -> None:
    @tenantq.message("bridge.test.order", cross_host=True)
    class Order(msgspec.Struct):
        number: int

    worker = tenantq.Worker(store, bridge=postgres_queue)
    handled: list[tuple[str | None, int]] = []

    @worker.on(Order)
    def handle(message: tenantq.Message[Order]) -> None:
        handled.append((message.tenant, message.payload.number))

    assert worker.run_once() == 0  # subscribes
    store.tenant("acme").send(Order(number=7))
    forwarder = Forwarder(store, postgres_queue)
    assert forwarder.run_once() == 1
    forwarder.stop()
    assert worker.run_once() == 1
    assert handled == [("acme", 7)]
    assert postgres_queue.stats().queues == ()
