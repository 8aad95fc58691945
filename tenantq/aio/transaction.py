"""A transaction for coroutines: it holds the tenant's file over awaits, and a thread only while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tenantq import transaction as core
from tenantq._sqlite import Parameters
from tenantq.aio._calls import Call
from tenantq.aio._core import Core
from tenantq.aio._pool import to_the_end
from tenantq.aio._verbs import awaitable
from tenantq.aio.message import Message
from tenantq.errors import TransactionError

if TYPE_CHECKING:
    from tenantq.aio.tenant import Tenant

__all__ = ["Transaction"]

T = TypeVar("T")


class Transaction:
    """An async context manager: what is done in it is durable when the `async with` block ends, or never happened.

    It holds the tenant's write lock from its first line: the other calls on the tenant wait, in this process
    and in all others, so await nothing slow in it. An exception, a cancellation and the store's
    `transaction_timeout` undo it. See `tenantq.Transaction`.
    """

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._transaction: core.Transaction | None = None
        self._limit = tenant.store.transaction_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._ending: Call[None] | None = None
        self._is_expired = False

    async def __aenter__(self) -> Self:
        if self._transaction is not None:
            raise TransactionError("a transaction is entered once", tenant=self._tenant.id)
        self._transaction = transaction = self._tenant._core.transaction()

        def begin(_tenant: Core) -> bool:
            transaction.__enter__()
            transaction.part()
            return True

        await self._tenant._pool.run(
            self._tenant.id,
            self._tenant._core,
            begin,
            undo=lambda _tenant, _begun: _end(transaction, TimeoutError()),
            holder=asyncio.current_task(),
        )
        self._tenant.store._open_transactions.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._limit, self._expire)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ending = self._ending or self._end(exc)
        is_cancelled = await to_the_end(ending.future)
        error = ending.future.exception()
        if is_cancelled:
            raise asyncio.CancelledError  # it is committed or undone all the same
        if exc is not None:
            return
        if self._is_expired:
            raise self._expired()
        if error is not None:
            raise error

    execute = awaitable(core.Transaction.execute)
    enqueue = awaitable(core.Transaction.enqueue)
    send = awaitable(core.Transaction.send)
    emit = awaitable(core.Transaction.emit)
    enqueue_many = awaitable(core.Transaction.enqueue_many)

    async def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Run one statement of the application for each row of parameters: for all of them, or for none."""
        listed = list(rows)  # here: what yields them may use what belongs to the event loop
        await self._call(lambda transaction: transaction.execute_many(sql, listed))

    async def ack(self, *messages: Message[Any]) -> None:
        """Remove messages of this tenant with the transaction. Raises LeaseLost, which undoes all of it."""
        deliveries = [message.delivery for message in messages]
        await self._call(lambda transaction: transaction.ack(*deliveries))

    async def _call(self, verb: Callable[[core.Transaction], T], *, merges: bool = False) -> T:  # noqa: ARG002
        transaction = self._open()

        def step(_tenant: Core) -> T:
            transaction.go_on()
            try:
                return verb(transaction)
            finally:
                transaction.part()

        call = self._step(step)
        try:
            return await call.future
        except asyncio.CancelledError:
            call.withdraw()  # one that has begun stands, if the transaction goes on
            raise

    def _step(self, step: Callable[[Core], T], *, frees: bool = False) -> Call[T]:
        pool = self._tenant.store._pool_in_use()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = Call(self._tenant._core, step, future, frees=frees)
        pool.submit(self._tenant.id, call, is_step=True)
        return call

    def _end(self, exc: BaseException | None) -> Call[None]:
        transaction = self._open()
        if self._timer is not None:
            self._timer.cancel()
        self._tenant.store._open_transactions.discard(self)
        self._ending = self._step(lambda _tenant: _end(transaction, exc), frees=True)
        return self._ending

    def _expire(self) -> None:
        """Undo it: it has taken too long, or the store is closed over it."""
        if self._ending is None:
            self._end(TimeoutError()).future.add_done_callback(_seen)
            self._is_expired = True

    def _open(self) -> core.Transaction:
        if self._is_expired:
            raise self._expired()
        if self._transaction is None or self._ending is not None:
            raise TransactionError(
                "the transaction is not open",
                hint="use it inside of its async with block",
                tenant=self._tenant.id,
            )
        return self._transaction

    def _expired(self) -> TransactionError:
        if self._tenant.store.is_closed:
            return TransactionError("the transaction was undone: the store was closed", tenant=self._tenant.id)
        return TransactionError(
            f"the transaction was undone after {self._limit:g} s",
            hint="await nothing slow in it, or open the store with a longer transaction_timeout",
            tenant=self._tenant.id,
        )


def _end(transaction: core.Transaction, exc: BaseException | None) -> None:
    transaction.go_on()
    transaction.__exit__(None if exc is None else type(exc), exc, None)


def _seen(future: asyncio.Future[None]) -> None:
    future.exception()
