"""What the demo counted, and whether anything was lost or repeated."""

from __future__ import annotations

from pathlib import Path

import msgspec

import tenantq
from tenantq_tools.demo import shop

__all__ = ["Check", "Layer", "Report", "count"]


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one layer."""

    name: str
    sent: int
    handled: int
    redelivered: int
    forwarded: int | None = None


class Check(msgspec.Struct, frozen=True):
    """One claim, whether it holds, and what was found."""

    claim: str
    holds: bool
    found: str


class Report(msgspec.Struct):
    """All figures and checks."""

    layers: list[Layer] = []
    checks: list[Check] = []

    def check(self, claim: str, holds: bool, found: str) -> None:
        """Add a check."""
        self.checks.append(Check(claim, holds, found))

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return bool(self.checks) and all(check.holds for check in self.checks)


def count(store_path: Path, ledger_path: Path, journals: Path, orders: list[shop.Order]) -> Report:
    """Count the effects in the files, and check them against the orders that were placed."""
    report = Report()
    expected = {(order.tenant, order.number) for order in orders}
    mails: list[tuple[str, str, int]] = []
    outbox = dead = waiting = 0
    problems: list[str] = []
    with tenantq.open(store_path, create=False) as store:
        for tenant_id in store.tenants():
            tenant = store.tenant(tenant_id, create=False)
            with tenant.transaction() as tx:
                mails += [(tenant_id, *row) for row in tx.execute("SELECT number, attempts FROM mail")]
            stats = tenant.stats()
            outbox += stats.outbox
            dead += stats.dead
            waiting += stats.ready + stats.scheduled + stats.claimed
            problems += tenantq.verify(tenant.path).problems
    with tenantq.open(ledger_path, create=False) as ledger, ledger.tenant(shop.BILLING).transaction() as tx:
        invoices = tx.execute("SELECT tenant, number, deliveries FROM invoice")
    text = "".join(path.read_text() for path in journals.iterdir())

    mailed = {(tenant, number) for tenant, number, _attempts in mails}
    invoiced = {(tenant, number) for tenant, number, _deliveries in invoices}
    report.layers = [
        Layer(
            name="tenant files",
            sent=len(orders),
            handled=len(mails),
            redelivered=sum(attempts > 1 for *_, attempts in mails),
        ),
        Layer(
            name="Postgres",
            sent=len(orders),
            handled=len(invoices),
            redelivered=sum(deliveries > 1 for *_, deliveries in invoices),
            forwarded=len(orders) - outbox,
        ),
        Layer(name="memory", sent=text.count("s"), handled=text.count("h"), redelivered=0),
    ]
    report.check("every order has its mail", mailed == expected, f"{len(mailed)} of {len(expected)}")
    report.check("no mail was written twice", len(mails) == len(mailed), f"{len(mails) - len(mailed)} twice")
    report.check("every order has its invoice", invoiced == expected, f"{len(invoiced)} of {len(expected)}")
    report.check("no event was repeated", len(invoices) == len(invoiced), f"{len(invoices) - len(invoiced)} twice")
    report.check(
        "nothing waits, and nothing is dead", waiting == outbox == dead == 0, f"{waiting + outbox + dead}"
    )
    report.check("every tenant's file is sound", not problems, "; ".join(problems) or "sound")
    return report
