"""What no layer takes: each a typed error that changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tenantq.errors import InvalidArgument, InvalidName
from tenantq.message import Message
from tests.contract.layers import Verbs

FUTURE = datetime(2200, 1, 1, tzinfo=UTC)


def test_an_invalid_argument_is_a_value_error() -> None:
    assert issubclass(InvalidArgument, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": -1e-9},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": "1"},
        {"delay": 1, "at": FUTURE},
        {"at": FUTURE.replace(tzinfo=None)},
        {"at": 1.5},
        {"priority": 32_768},
        {"priority": 0.5},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
    ],
    ids=str,
)
def test_an_enqueue_is_refused(queue: Verbs, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        queue.enqueue("mail", 1, **options)
    with pytest.raises(InvalidArgument):
        queue.enqueue_many("mail", [1], **options)
    assert (queue.stats().ready, queue.stats().scheduled) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": 1.0},
        {"lease": 0},
        {"lease": -1},
        {"lease": math.nan},
        {"lease": math.inf},
        {"wait": -1},
        {"wait": math.nan},
        {"wait": math.inf},
        {"worker": ""},
        {"worker": "a\nb"},
    ],
    ids=str,
)
def test_a_claim_is_refused(queue: Verbs, options: dict[str, Any]) -> None:
    queue.enqueue("mail", 1)
    with pytest.raises(InvalidArgument):
        queue.claim("mail", **options)
    assert (queue.stats().ready, queue.stats().claimed) == (1, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda message: message.nack(delay=-1),
        lambda message: message.nack(delay=math.nan),
        lambda message: message.nack(delay=math.inf),
        lambda message: message.extend(0),
        lambda message: message.extend(-1),
        lambda message: message.extend(math.nan),
        lambda message: message.extend(math.inf),
    ],
)
def test_an_ending_is_refused(queue: Verbs, call: Callable[[Message[Any]], None]) -> None:
    queue.enqueue("mail", 1)
    (message,) = queue.claim("mail")
    with pytest.raises(InvalidArgument):
        call(message)
    assert message.settled is False
    message.ack()


@pytest.mark.parametrize("name", ["", "x" * 129, "a\x00b", "a\nb", "\ud800", None, 1, b"mail"])
def test_a_name_is_refused(queue: Verbs, name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: queue.enqueue(name, 1),
        lambda: queue.enqueue_many(name, [1]),
        lambda: queue.claim(name),
    ]
    if name is not None:
        calls.append(lambda: queue.enqueue("mail", 1, key=name))
    for call in calls:
        with pytest.raises(InvalidName):
            call()
    assert queue.stats().ready == 0


@pytest.mark.needs("peek")
def test_a_peek_without_a_limit_is_refused(queue: Verbs) -> None:
    with pytest.raises(InvalidArgument):
        queue.peek("mail", 0)


def test_dead_letters_without_a_limit_are_refused(queue: Verbs) -> None:
    with pytest.raises(InvalidArgument):
        queue.dead_letters("mail", limit=0)
