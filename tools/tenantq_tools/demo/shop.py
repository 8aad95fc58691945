"""The shop: its orders, its message types, and what its handlers do, so that each effect can be counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec

import tenantq
from tenantq_bridge import PostgresQueue

__all__ = ["BILLING", "Mail", "Order", "OrderPlaced", "WarmPage", "make_worker", "read_orders"]

BILLING = "billing"
"""The Postgres queue that gets the orders of all shops."""

SCHEMA = "tenantq_demo"
"""The Postgres schema of the demo, apart from an application's own."""

LEASE = 3.0
"""Seconds: short, so that what a killed worker had claimed comes again while one watches."""

CREATE_SHOP_TABLES = """
CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, total_cents INTEGER NOT NULL, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS mail (number TEXT NOT NULL, attempts INTEGER NOT NULL);
"""

CREATE_INVOICES = """
CREATE TABLE IF NOT EXISTS invoice (
    event_id   TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    number     TEXT NOT NULL,
    deliveries INTEGER NOT NULL
);
"""


class Order(msgspec.Struct):
    """One line of the data file; what the demo does not use stays in `document`."""

    tenant: str
    number: str
    total_cents: int
    email: str
    skus: list[str]
    document: str


@tenantq.message("shop.mail")
class Mail(msgspec.Struct):
    """The confirmation of an order: it must survive a restart, and only this host need see it."""

    number: str
    to: str
    skus: list[str]


@tenantq.message("shop.order_placed", cross_host=True)
class OrderPlaced(msgspec.Struct):
    """What billing must know, wherever it runs."""

    number: str
    total_cents: int


@tenantq.message("shop.warm_page", durable=False)
class WarmPage(msgspec.Struct):
    """A page worth keeping warm: it can be computed again at any time."""

    sku: str


def read_orders(limit: int) -> Iterator[Order]:
    """Yield the first orders of the data file."""
    text = resources.files("tenantq_tools").joinpath("data", "shop_orders.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines()[:limit]:
        document = msgspec.json.decode(line)
        order = document["order"]
        yield Order(
            tenant=document["tenant"],
            number=order["number"],
            total_cents=order["total_cents"],
            email=order["customer"]["email"],
            skus=[item["sku"] for item in order["lines"]],
            document=line,
        )


def place(shop: tenantq.Tenant, order: Order) -> None:
    """Commit an order, its mail and its event: all three or none."""
    with shop.transaction() as tx:
        tx.execute(
            "INSERT INTO orders (number, total_cents, document) VALUES (?, ?, ?)",
            (order.number, order.total_cents, order.document),
        )
        tx.send(Mail(number=order.number, to=order.email, skus=order.skus))
        tx.send(OrderPlaced(number=order.number, total_cents=order.total_cents))


def worker_name(pid: int) -> str:
    """Return what the worker of a process is called beside its claims."""
    return f"demo-{pid}"


def make_worker(
    store: tenantq.Store,
    ledger: tenantq.Store,
    bridge: PostgresQueue,
    journal: Path,
) -> tenantq.Worker:
    """Return a worker for the three layers.

    The memory layer is gone with its process: what it was sent and what it handled is written to `journal`.
    """
    worker = tenantq.Worker(store, bridge=bridge, concurrency=4, lease=LEASE, name=worker_name(os.getpid()))
    descriptor = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    billing = ledger.tenant(BILLING)

    @worker.on(Mail)
    def write_mail(message: tenantq.Message[Mail]) -> None:
        shop = store.tenant(message.tenant or "")
        mail = message.payload
        with shop.transaction() as tx:  # the effect and the ack are one: exactly once
            tx.execute("INSERT INTO mail (number, attempts) VALUES (?, ?)", (mail.number, message.attempts))
            tx.ack(message)
        shop.send(WarmPage(sku=mail.skus[0]))
        os.write(descriptor, b"s")

    @worker.on(WarmPage)
    def warm_page(_message: tenantq.Message[WarmPage]) -> None:
        os.write(descriptor, b"h")

    @worker.on(OrderPlaced, queue=BILLING)
    def write_invoice(message: tenantq.Message[OrderPlaced]) -> None:
        with billing.transaction() as tx:  # the event's id makes a repetition no second invoice
            tx.execute(
                "INSERT INTO invoice (event_id, tenant, number, deliveries) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (event_id) DO UPDATE SET deliveries = excluded.deliveries",
                (message.event_id, message.tenant, message.payload.number, message.attempts),
            )

    return worker
