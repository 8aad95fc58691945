"""One SQLite transaction on a tenant's file: the application's rows, messages, events and acks, all or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tenantq._bounds import ids_of
from tenantq._file import TenantFile
from tenantq._handle import Handle
from tenantq._operations import emit_operation, enqueue_operation, fences
from tenantq._sqlite import Parameters, Row
from tenantq.arguments import DEFAULT_MAX_ATTEMPTS
from tenantq.errors import LeaseLost, QueueFull, TenantqError, TransactionError
from tenantq.message import Message

if TYPE_CHECKING:
    from tenantq.tenant import Tenant

__all__ = ["Transaction"]

T = TypeVar("T")

_REFUSED = re.compile(
    r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH|VACUUM)\b",
    re.IGNORECASE | re.DOTALL,
)


class Transaction:
    """A context manager: what is done in it is durable when the `with` block ends, or never happened.

    It holds the tenant's write lock from its first line, so keep it short. Belongs to one thread.
    """

    def __init__(self, tenant: Tenant, handle_of: Callable[[], Handle]) -> None:
        self._tenant = tenant
        self._handle_of = handle_of
        self._handle: Handle | None = None
        self._is_broken = False
        self._settled: list[Message[Any]] = []
        self._after_commit: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        if self._handle is not None:
            raise TransactionError("a transaction is entered once", tenant=self._tenant.id)
        self._handle = self._handle_of()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        handle = self._open()
        broken, self._is_broken = self._is_broken, True  # whatever comes, it is over
        if exc_type is not None or broken:
            handle.end(commit=False)
            if exc_type is None:
                raise TransactionError(
                    "the transaction was undone: a statement in it failed as a whole",
                    tenant=self._tenant.id,
                )
            return
        handle.end(commit=True)
        for message in self._settled:
            message.settled = True
        self._send_to_memory()

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run SQL of the application and return its rows. Raises StatementFailed and file errors."""
        self._check_statement(sql)
        return self._guarded(lambda file: file.execute_guest(sql, parameters))

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Run one statement of the application for each row of parameters: for all of them, or for none."""
        self._check_statement(sql)

        def operation(file: TenantFile) -> None:
            for parameters in rows:
                file.execute_guest(sql, parameters)

        self._guarded(operation)

    def enqueue(
        self,
        queue: str,
        payload: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Enqueue one message and return its id; see `Tenant.enqueue`.

        Raises QueueFull at once where there is no room: nothing leaves while the transaction lasts.
        """
        operation = enqueue_operation(
            self._tenant.clock,
            queue,
            [payload],
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers,
        )
        return ids_of(self._guarded(operation), self._tenant.id)[0]

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Enqueue messages and return their ids; see `Tenant.enqueue_many`."""
        operation = enqueue_operation(
            self._tenant.clock,
            queue,
            list(payloads),
            delay=delay,
            at=at,
            priority=priority,
            key=None,
            max_attempts=max_attempts,
            headers=headers,
        )
        return ids_of(self._guarded(operation), self._tenant.id)

    def send(
        self,
        message: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Send a declared message to its layer; see `Tenant.send`.

        One for the memory layer is enqueued after the commit, and 0 is returned: it has no id yet.
        """
        return self._tenant.route(
            message,
            delay=delay,
            at=at,
            priority=priority,
            key=key,
            max_attempts=max_attempts,
            headers=headers,
            enqueue=self.enqueue,
            emit=self.emit,
            remember=self._remember,
        )

    def emit(
        self,
        topic: str,
        payload: object,
        *,
        delay: float = 0,
        at: datetime | None = None,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Put an event into the outbox and return its place there; see `Tenant.emit`."""
        operation = emit_operation(
            self._tenant.clock,
            topic,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            max_attempts=max_attempts,
            headers=headers,
            max_outbox=self._tenant.store.config.max_outbox,
        )
        return self._guarded(operation)

    def ack(self, *messages: Message[Any]) -> None:
        """Remove messages of this tenant with the transaction. Raises LeaseLost, which undoes all of it."""
        held = fences(messages)
        lost = self._guarded(
            lambda file: [lost for queue, some in held.items() for lost in file.ack(queue, some)],
        )
        if lost:
            self._is_broken = True
            raise LeaseLost(lost=lost, tenant=self._tenant.id)
        self._settled.extend(messages)

    def part(self) -> None:
        """Let another thread go on with it; see `go_on`."""
        self._open().part()

    def go_on(self) -> None:
        """Let it belong to this thread from here on: its own has parted with it."""
        if self._handle is not None:
            self._handle.go_on()

    def _remember(self, action: Callable[[], object]) -> int:
        self._guarded(lambda _file: None)
        self._after_commit.append(action)
        return 0

    def _send_to_memory(self) -> None:
        failures: list[TenantqError] = []
        for action in self._after_commit:
            try:
                action()
            except TenantqError as exc:
                failures.append(exc)
        if failures:
            raise QueueFull(
                f"the transaction is committed, but {len(failures)} of its messages did not get into memory: "
                f"{failures[0].message}",
                hint="do not repeat the transaction; send these again, or declare them durable",
                tenant=self._tenant.id,
            ) from failures[0]

    def _open(self) -> Handle:
        if self._handle is None or not self._handle.is_mine:
            raise TransactionError(
                "the transaction is not open in this thread",
                hint="use it inside of its with block, in the thread that opened it",
                tenant=self._tenant.id,
            )
        return self._handle

    def _check_statement(self, sql: str) -> None:
        found = _REFUSED.match(sql)
        if found:
            raise TransactionError(
                f"{found[1].upper()} does not go inside of a transaction",
                hint="the with block begins and ends it",
                tenant=self._tenant.id,
            )

    def _guarded(self, operation: Callable[[TenantFile], T]) -> T:
        file = self._open().file
        if self._is_broken:
            raise TransactionError("the transaction failed already", tenant=self._tenant.id)
        try:
            saved = file.savepoint()
            try:
                result = operation(file)
            except BaseException:
                if file.database.in_transaction:
                    file.undo_savepoint(saved)  # half a call is none, whether or not the caller goes on
                raise
            if not file.database.in_transaction:
                raise TransactionError("a statement ended the transaction", tenant=self._tenant.id)
            file.release_savepoint()
            return result
        finally:
            if not file.database.in_transaction:
                # SQLite undid it (a full disk), or the statement ended it: nothing may follow as if it stood.
                self._is_broken = True
