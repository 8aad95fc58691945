"""The tenant as the pool's threads use it: its verbs wait for nobody, and many run in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from tenantq._file import TenantFile
from tenantq._handle import Handle
from tenantq.message import Message
from tenantq.tenant import Tenant

__all__ = ["Again", "Core", "Inside", "NoRoom"]

T = TypeVar("T")
U = TypeVar("U")


class NoRoom(Exception):
    """A queue is full and the call would wait: that is the event loop's to do."""

    def __init__(self, queue: str, wait: float) -> None:
        super().__init__(queue, wait)
        self.queue = queue
        self.wait = wait


class Again(Exception):
    """A claim has moved a step of what is due, and goes on when others had their turns."""


class Core(Tenant):
    """A tenant whose verbs do not block for what others or time may bring."""

    def _claim_when_rung(self, *_: object) -> list[Message[Any]]:
        return []

    def _enqueue_in_line(self, queue: str, _enqueue: object, wait: float) -> NoReturn:
        raise NoRoom(queue, wait)


class Inside(Core):
    """A tenant whose verbs run in a transaction that is open on its file: the core's own verbs, unchanged.

    What a verb writes is undone by its caller if `failure` is what it raised. Any other error is the verb's
    answer (a lost lease, a full queue), and what it wrote stands.
    """

    def __init__(self, core: Core, file: TenantFile) -> None:
        self.__dict__.update(core.__dict__)
        self._core = core
        self._file = file
        self.failure: BaseException | None = None
        self.settled: list[Message[Any]] = []
        """The messages that are settled once this is committed."""

    def _use(self, create: bool, action: Callable[[Handle, U], T], argument: U, default: Any) -> T:  # noqa: ARG002
        operation: Any = argument
        try:
            result: T = operation(self._file)
        except BaseException as exc:
            self.failure = exc
            raise
        return result

    def _write_existing(self, operation: Callable[[TenantFile], T], default: Any) -> T:
        result = super()._write_existing(operation, default)
        if result is None:  # a claim's alone
            raise Again
        return result

    def _settle(self, messages: Iterable[Message[Any]], lost: list[int]) -> None:
        listed = list(messages)
        self.settled += [message for message in listed if not message.settled]
        super()._settle(listed, lost)

    def _messages(self, *arguments: Any) -> list[Message[Any]]:
        return self._core._messages(*arguments)  # whose verbs act on their own, behind this transaction
