"""tenantq.aio: tenantq for asyncio, thin over the one core.

The names and the verbs are those of `tenantq`; those that touch a file are awaited. Calls that coroutines make on
a tenant in one turn of the event loop are committed in one transaction, each returns after its commit, and a
few threads serve all tenants. What waits (a claim for a message, an enqueue for room, a transaction between
two statements) costs no thread. Errors, outcomes and message types are the core's own.

    >>> import asyncio, tempfile, tenantq.aio
    >>> async def main(root):
    ...     async with tenantq.aio.open(root) as store:
    ...         acme = store.tenant("acme")
    ...         await asyncio.gather(*(acme.enqueue("mail", n) for n in range(3)))  # one commit
    ...         for message in await acme.claim("mail", limit=3, wait=5):
    ...             print(message.payload)
    ...             await message.ack()
    >>> with tempfile.TemporaryDirectory() as root:
    ...     asyncio.run(main(root))
    0
    1
    2
"""

from tenantq.aio.memory import MemoryQueue
from tenantq.aio.message import Message
from tenantq.aio.outbox import Inbox, Outbox
from tenantq.aio.periodic import PeriodicMessages
from tenantq.aio.store import Store, open  # noqa: A004 - tenantq.aio.open reads as it should
from tenantq.aio.tenant import Tenant
from tenantq.aio.transaction import Transaction
from tenantq.aio.worker import Worker

__all__ = [
    "Inbox",
    "MemoryQueue",
    "Message",
    "Outbox",
    "PeriodicMessages",
    "Store",
    "Tenant",
    "Transaction",
    "Worker",
    "open",
]
