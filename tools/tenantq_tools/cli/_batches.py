"""Messages on their way into the tenants' files: many of one tenant in one transaction, few in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from tenantq import Store, Tenant, TenantqError
from tenantq_tools.cli._entries import Entry

__all__ = ["Batches", "Count"]

BATCH_MESSAGES = 500
"""Messages of one transaction: far past where more of them make it faster."""

MAX_MESSAGES = 50_000
MAX_BYTES = 32 * 1024 * 1024
"""What all tenants' batches hold together before they are committed, full or not."""


class Count(msgspec.Struct):
    """What became of the messages for one queue of one tenant."""

    enqueued: int = 0
    known: int = 0
    """Those that waited or were claimed already, under the same key."""


class Batches:
    """Collects messages by tenant and commits them; those of one tenant keep their order.

    A tenant whose file fails is given up: its messages are refused, those of others go on.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        refuse: Callable[[Entry, TenantqError], None],
        *,
        create: bool,
    ) -> None:
        self.counts: dict[tuple[str, str], Count] = {}
        """By tenant and queue."""
        self._open_store = open_store
        self._refuse = refuse
        self._create = create
        self._waiting: dict[str, list[Entry]] = {}
        self._messages = 0
        self._bytes = 0
        self._failed: dict[str, TenantqError] = {}

    def add(self, entry: Entry) -> None:
        """Take a message; it may be committed later, with others."""
        failure = self._failed.get(entry.tenant)
        if failure is not None:
            self._refuse(entry, failure)
            return
        waiting = self._waiting.setdefault(entry.tenant, [])
        waiting.append(entry)
        self._messages += 1
        self._bytes += entry.line.size
        if len(waiting) >= BATCH_MESSAGES:
            self._commit(entry.tenant)
        elif self._messages >= MAX_MESSAGES or self._bytes >= MAX_BYTES:
            self.flush()

    def flush(self) -> None:
        """Commit what waits."""
        for tenant_id in list(self._waiting):
            self._commit(tenant_id)

    def _commit(self, tenant_id: str) -> None:
        entries = self._waiting.pop(tenant_id)
        self._messages -= len(entries)
        self._bytes -= sum(entry.line.size for entry in entries)
        try:
            is_new = _enqueue(self._open_store().tenant(tenant_id, create=self._create), entries)
        except TenantqError as exc:
            self._failed[tenant_id] = exc
            for entry in entries:
                self._refuse(entry, exc)
            return
        for entry, was_added in zip(entries, is_new, strict=True):
            count = self.counts.setdefault((tenant_id, entry.queue), Count())
            count.enqueued += was_added
            count.known += not was_added


def _enqueue(tenant: Tenant, entries: Sequence[Entry]) -> list[bool]:
    """Enqueue messages in one transaction; say of each whether it was added or known by its key."""
    is_new: list[bool] = []
    with tenant.transaction() as tx:
        # Ids only grow: one that is not above all others is that of a message which was there.
        last: int = tx.execute("SELECT COALESCE(MAX(id), 0) FROM queue")[0][0]
        for (queue, options), some in itertools.groupby(entries, lambda entry: (entry.queue, entry.options)):
            given = msgspec.structs.asdict(options)
            payloads = [entry.payload for entry in some]
            if given.pop("key") is None:
                ids = tx.enqueue_many(queue, payloads, **given)
            else:
                ids = [tx.enqueue(queue, payload, key=options.key, **given) for payload in payloads]
            for id_ in ids:
                is_new.append(id_ > last)
                last = max(last, id_)
    return is_new
