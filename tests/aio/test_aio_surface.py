"""tenantq.aio has every public verb of tenantq, with the same parameters and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tenantq
import tenantq.aio
from tenantq.inbox import Inbox
from tenantq.periodic import PeriodicMessages

PAIRS = [
    (tenantq.Store, tenantq.aio.Store),
    (tenantq.Tenant, tenantq.aio.Tenant),
    (tenantq.Transaction, tenantq.aio.Transaction),
    (tenantq.Message, tenantq.aio.Message),
    (tenantq.MemoryQueue, tenantq.aio.MemoryQueue),
    (tenantq.Outbox, tenantq.aio.Outbox),
    (Inbox, tenantq.aio.Inbox),
    (PeriodicMessages, tenantq.aio.PeriodicMessages),
    (tenantq.Worker, tenantq.aio.Worker),
]

WITHOUT = {
    tenantq.Store: {
        "watch",  # blocks a thread that its user has for it
        "handle",  # of the package's own modules, as are the next ones
        "announce",
        "listening",
        "exclusive",
        "absence",
        "periods",
        "periods_path",
        "tenants_of",
    },
    tenantq.Tenant: {"route", "known_weight"},
    tenantq.Transaction: {"part", "go_on"},
}
"""What threads have and coroutines have no use for."""

NOT_AWAITED = {
    tenantq.Store: {"tenant", "tenants", "activity", "failing", "quiesce"},
    tenantq.Tenant: {"transaction"},
    tenantq.MemoryQueue: {"subscribe"},
    tenantq.Worker: {"on", "request_stop"},
}

DIFFERENT = {"concurrency", "threads"}
"""Parameters that mean another thing to coroutines."""


def public(of: type) -> dict[str, Any]:
    return {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}


def parameters(verb: Callable[..., Any]) -> list[tuple[str, object, object]]:
    return [
        (one.name, one.kind, one.default)
        for one in inspect.signature(verb).parameters.values()
        if one.name not in DIFFERENT
    ]


VERBS = [
    pytest.param(core, aio, name, id=f"{core.__name__}.{name}")
    for core, aio in PAIRS
    for name, verb in public(core).items()
    if inspect.isfunction(verb) and name not in WITHOUT.get(core, ())
]


@pytest.mark.parametrize(("core", "aio", "name"), VERBS)
def test_a_verb_has_the_same_parameters(core: type, aio: type, name: str) -> None:
    verb = getattr(aio, name)
    assert parameters(verb) == parameters(getattr(core, name))
    assert verb.__doc__


@pytest.mark.parametrize(("core", "aio", "name"), VERBS)
def test_a_verb_is_awaited_unless_it_does_no_work(core: type, aio: type, name: str) -> None:
    verb = getattr(aio, name)
    returns_awaitable = inspect.iscoroutinefunction(inspect.unwrap(verb, stop=inspect.iscoroutinefunction))
    assert returns_awaitable is (name not in NOT_AWAITED.get(core, ()))


@pytest.mark.parametrize(("core", "aio"), PAIRS)
def test_it_has_every_public_name_and_few_of_its_own(core: type, aio: type) -> None:
    theirs = {*public(core)} - WITHOUT.get(core, set())
    assert theirs - {*public(aio)} == set()


def test_a_message_has_every_field_of_the_core_s() -> None:
    assert {name for name in tenantq.Message.__slots__ if not name.startswith("_")} <= {
        *public(tenantq.aio.Message)
    }


@pytest.mark.parametrize(
    ("core", "aio"),
    [(tenantq.open, tenantq.aio.open), (tenantq.Worker.__init__, tenantq.aio.Worker.__init__)],
)
def test_options_are_the_same_and_more(core: Callable[..., Any], aio: Callable[..., Any]) -> None:
    ours = parameters(aio)
    assert [one for one in ours if one in parameters(core)] == parameters(core)


def test_all_says_what_is_exported() -> None:
    assert tenantq.aio.__all__ == sorted(tenantq.aio.__all__)
    assert all(hasattr(tenantq.aio, name) for name in tenantq.aio.__all__)
