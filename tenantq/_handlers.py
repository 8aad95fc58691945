"""Which function handles which message, and what its end does to the message."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from tenantq.errors import InvalidArgument, LeaseLost, TenantqError
from tenantq.message import Message
from tenantq.naming import check_name
from tenantq.outcome import DeadLetter, Snooze
from tenantq.router import Layer, declaration_of

__all__ = [
    "Function",
    "Handler",
    "Handlers",
    "Tally",
    "Verdict",
    "check_payload",
    "failure",
    "unhandled",
    "verdict_of",
]

logger = logging.getLogger("tenantq.worker")

Function = Callable[[Message[Any]], object]

Finish = Callable[[Message[Any]], bool]
"""Takes over the ack of a message; False if it does not."""

Verdict = tuple[str, Callable[[], None]]
"""What a handler's end means for its message: the name that is counted, and what writes it."""

SETTLE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds between tries to write a handler's outcome: its work is done, a locked file is no reason to redo it."""

UNHANDLED_DELAY = 30.0
"""Seconds until a message without a handler is tried again: another version of the application may have one."""


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and the messages it is for."""

    layer: Layer
    queue: str
    topic: str | None
    """Of the shared layer's messages in this queue, only those of this topic; None: any."""
    function: Function
    subscribes: bool
    """Whether the queue is the topic's own, to be subscribed to it."""


class Tally:
    """What a worker did, counted over its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, outcome: str, layer: Layer) -> None:
        """Count one message."""
        with self._lock:
            self._counts[outcome] += 1
            self._counts[f"{layer.value}.{outcome}"] += 1

    def counts(self) -> dict[str, int]:
        """Return the counts: handled, failed, snoozed, dead, lost; and each by layer, as `tenant.handled`."""
        with self._lock:
            return dict(self._counts)


class Handlers:
    """The handlers of one worker."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._handlers: dict[tuple[Layer, str], dict[str | None, Handler]] = {}

    def add(self, target: type | str, function: Function, *, queue: str | None, layer: Layer | None) -> None:
        """Register a function for a declared type, or for every message of a named queue."""
        if isinstance(target, str):
            check_name(target)
            handler = Handler(
                layer=layer or Layer.TENANT,
                queue=target,
                topic=None,
                function=function,
                subscribes=False,
            )
        else:
            declaration = declaration_of(target)
            is_shared = declaration.layer is Layer.SHARED
            if queue is not None and not is_shared:
                raise InvalidArgument(f"{declaration.name!r} is a queue of its own: only shared types take one")
            handler = Handler(
                layer=declaration.layer,
                queue=check_name(queue or declaration.name),
                topic=declaration.name if is_shared else None,
                function=function,
                subscribes=is_shared and queue is None,
            )
        known = self._handlers.setdefault((handler.layer, handler.queue), {})
        if handler.topic in known:
            raise InvalidArgument(f"queue {handler.queue!r} has a handler for this already", queue=handler.queue)
        known[handler.topic] = handler

    def queues(self, layer: Layer) -> list[str]:
        """Return the queues of a layer that have handlers."""
        return sorted(queue for of_layer, queue in self._handlers if of_layer is layer)

    def subscriptions(self) -> list[str]:
        """Return the topics that have a queue of their own name."""
        return sorted(
            handler.queue
            for handlers in self._handlers.values()
            for handler in handlers.values()
            if handler.subscribes
        )

    def handle(self, layer: Layer, message: Message[Any], finish: Finish = lambda _message: False) -> bool:
        """Run a message's handler and write the outcome. Never raises: it ends up on the message or in the log.

        The ack of a handled message is offered to `finish` first. True if that took it over: then `tell` is
        called when it is written.
        """
        verdict = self._run(layer, message)
        is_acked_later = self.pass_on(layer, message, verdict, finish)
        if is_acked_later is None:
            self.write(layer, message, verdict)
        return bool(is_acked_later)

    def find(self, layer: Layer, message: Message[Any]) -> Function | None:
        """Return the function for a message; None if there is none for its topic."""
        handlers = self._handlers[layer, message.queue]
        handler = handlers.get(message.topic) or handlers.get(None)
        return None if handler is None else handler.function

    def pass_on(self, layer: Layer, message: Message[Any], verdict: Verdict, finish: Finish) -> bool | None:
        """Offer a message's ack to `finish`; None if nobody took it over and the verdict is to be written.

        False if it is written already; never blocks.
        """
        if message.settled:  # the handler acked it, in a transaction of its own
            self.tally.add("handled", layer)
            return False
        return True if verdict[0] == "handled" and finish(message) else None

    def tell(self, message: Message[Any], lost: LeaseLost | None) -> None:
        """Count a tenant's message whose ack was taken over; write it here if it is not written yet."""
        if message.settled:
            self.tally.add("handled", Layer.TENANT)
        elif lost is not None:
            logger.warning("the lease was lost while a handler ran", extra=_about(message))
            self.tally.add("lost", Layer.TENANT)
        else:
            self.write(Layer.TENANT, message, ("handled", message.ack))

    def write(self, layer: Layer, message: Message[Any], verdict: Verdict) -> None:
        """Write what a handler's end means, for as long as the file may be locked; count it. Never raises."""
        outcome, write = verdict
        try:
            _persist(write)
        except LeaseLost:
            outcome = "lost"
            logger.warning("the lease was lost while a handler ran", extra=_about(message))
        except Exception:
            outcome = "lost"
            logger.exception("a handler's outcome could not be written", extra=_about(message))
        self.tally.add(outcome, layer)

    def _run(self, layer: Layer, message: Message[Any]) -> Verdict:
        function = self.find(layer, message)
        if function is None:
            return unhandled(message)
        try:
            check_payload(message)
            outcome = function(message)
        except BaseException as exc:
            return failure(message, exc)
        return verdict_of(message, outcome)


def check_payload(message: Message[Any]) -> None:
    """Raise for a payload that does not decode: a failed attempt, not the handler's bug."""
    if message.payload_type is not None:
        _ = message.payload


def unhandled(message: Message[Any]) -> Verdict:
    """Return what becomes of a message without a handler."""
    return "snoozed", lambda: _snooze(message, UNHANDLED_DELAY)


def failure(message: Message[Any], exc: BaseException) -> Verdict:
    """Return what becomes of a message whose handler raised."""
    error = f"{type(exc).__name__}: {exc}"
    logger.warning("a handler failed", exc_info=exc, extra=_about(message))
    return "failed", lambda: message.nack(error=error)


def verdict_of(message: Message[Any], outcome: object) -> Verdict:
    """Return what becomes of a message whose handler returned."""
    match outcome:
        case Snooze(seconds=seconds):
            return "snoozed", lambda: _snooze(message, seconds)
        case DeadLetter(reason=reason):
            return "dead", lambda: message.dead_letter(error=reason)
        case _:
            return "handled", message.ack


def _snooze(message: Message[Any], seconds: float) -> None:
    message.release(delay=seconds)


def _persist(write: Callable[[], None]) -> None:
    for pause in SETTLE_PAUSES:
        try:
            return write()
        except LeaseLost:
            raise
        except TenantqError:
            logger.warning("an outcome could not be written yet", exc_info=True)
            time.sleep(pause)
    return write()


def _about(message: Message[Any]) -> dict[str, object]:
    return {
        "tenant": message.tenant,
        "queue": message.queue,
        "message_id": message.id,
        "attempt": message.attempts,
    }
