from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tenantq
from tenantq import router
from tenantq.errors import DeclarationError, InvalidArgument
from tenantq.router import Layer, declaration_of, declared_type


@pytest.fixture(autouse=True)
def _declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test declares for itself alone."""
    monkeypatch.setattr(router, "_by_name", {})
    monkeypatch.setattr(router, "_by_type", {})


class First(msgspec.Struct):
    value: int = 0


class Second(msgspec.Struct):
    value: int = 0


@pytest.mark.parametrize(
    ("needs", "layer"),
    [
        ({}, Layer.TENANT),
        ({"durable": True}, Layer.TENANT),
        ({"durable": False}, Layer.MEMORY),
        ({"cross_host": True}, Layer.SHARED),
        ({"cross_host": True, "durable": False}, Layer.SHARED),
        ({"cross_host": False, "durable": False}, Layer.MEMORY),
    ],
)
def test_the_needs_choose_the_layer(needs: dict[str, bool], layer: Layer) -> None:
    assert tenantq.message("first", **needs)(First) is First
    assert declaration_of(First(1)).layer is declaration_of(First).layer is layer
    assert declared_type("first") is First


def test_two_types_may_not_have_one_name() -> None:
    tenantq.message("first")(First)
    with pytest.raises(DeclarationError, match=r"Second cannot be declared as 'first': .*First is declared"):
        tenantq.message("first")(Second)
    assert declared_type("first") is First
    with pytest.raises(DeclarationError):
        declaration_of(Second)


def test_one_type_may_not_have_two_names() -> None:
    tenantq.message("first")(First)
    with pytest.raises(DeclarationError, match="'second'"):
        tenantq.message("second")(First)
    assert declared_type("second") is None


def test_a_type_may_be_declared_again_by_a_reload() -> None:
    tenantq.message("first")(First)
    again = type("First", (msgspec.Struct,), {"__module__": First.__module__})
    assert tenantq.message("first")(again) is again
    assert declared_type("first") is again


@pytest.mark.parametrize("value", [1, "text", First(), First, {"a": 1}, None, object])
def test_a_type_that_was_not_declared_is_refused(value: Any, acme: tenantq.Tenant) -> None:
    with pytest.raises(DeclarationError, match="not a declared message type") as caught:
        acme.send(value)
    assert "tenantq.message" in caught.value.hint
    assert not acme.path.exists()


def test_a_subclass_is_declared_for_itself() -> None:
    tenantq.message("first")(First)
    with pytest.raises(DeclarationError):
        declaration_of(type("Sub", (First,), {}))


@pytest.mark.parametrize(
    "declare",
    [
        lambda: tenantq.message(""),
        lambda: tenantq.message("a\0"),
        lambda: tenantq.message(First),  # type: ignore[arg-type]
        lambda: tenantq.message("a", priority=2**15),
        lambda: tenantq.message("a", max_attempts=0),
        lambda: tenantq.message("a")(First()),  # type: ignore[type-var]
    ],
)
def test_a_declaration_is_checked(declare: Any) -> None:
    with pytest.raises((DeclarationError, InvalidArgument)):
        declare()


def test_send_uses_what_the_type_declares_unless_told_otherwise(acme: tenantq.Tenant) -> None:
    tenantq.message("first", priority=3, max_attempts=7)(First)
    acme.send(First(1))
    acme.send(First(2), priority=0, max_attempts=1, key="k", headers={"a": "b"})
    one, two = acme.claim("first", 2)
    assert (one.payload, one.priority, one.max_attempts, one.key) == (First(1), 3, 7, None)
    assert (two.payload, two.priority, two.max_attempts, two.key, two.headers) == (First(2), 0, 1, "k", {"a": "b"})


def test_send_puts_each_type_into_its_layer(store: tenantq.Store, acme: tenantq.Tenant) -> None:
    tenantq.message("first", cross_host=True)(First)
    tenantq.message("second", durable=False)(Second)
    seq = acme.send(First(1))
    acme.send(Second(2))
    (event,) = acme.outbox.read(0, limit=10, max_bytes=1000)
    assert (event.seq, event.topic, event.body) == (seq, "first", '{"value":1}')
    (remembered,) = store.memory.claim("second")
    assert (remembered.payload, remembered.tenant) == (Second(2), "acme")
    assert acme.stats().queues == ()


def test_a_type_that_crosses_hosts_takes_no_key(acme: tenantq.Tenant) -> None:
    tenantq.message("first", cross_host=True)(First)
    with pytest.raises(InvalidArgument, match="takes no key"):
        acme.send(First(1), key="k")
