"""Message types and the layer each belongs to: declared once, chosen by the documents' decision tree."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from tenantq.arguments import DEFAULT_MAX_ATTEMPTS, check_max_attempts, check_priority
from tenantq.errors import DeclarationError
from tenantq.naming import check_name

__all__ = ["Declaration", "Layer", "declaration_of", "declared_type", "message"]

C = TypeVar("C", bound=type)


class Layer(StrEnum):
    """Where a message waits."""

    SHARED = "shared"
    """Postgres: other hosts see it."""
    TENANT = "tenant"
    """The tenant's SQLite file: it survives a restart."""
    MEMORY = "memory"
    """This process: it does not."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a message type declared."""

    name: str
    type: type
    layer: Layer
    priority: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS


_by_name: dict[str, Declaration] = {}
_by_type: dict[type, Declaration] = {}


def message(
    name: str,
    *,
    cross_host: bool = False,
    durable: bool = True,
    priority: int = 0,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> Callable[[C], C]:
    """Declare a message type: its name is its queue (or its topic), its needs choose the layer.

    Does it need cross-host visibility? Then Postgres. Otherwise, does it need durability across restarts?
    Then the tenant's file. Otherwise memory. (The documents' decision tree.) Raises DeclarationError when
    another type has the name or the type has another name.
    """
    check_name(name, "message name")
    check_priority(priority)
    check_max_attempts(max_attempts)
    layer = Layer.SHARED if cross_host else Layer.TENANT if durable else Layer.MEMORY

    def declare(message_type: C) -> C:
        if not isinstance(message_type, type):
            raise DeclarationError(f"@tenantq.message({name!r}) declares classes, not {message_type!r}")
        for known in (_by_name.get(name), _by_type.get(message_type)):
            if known is not None and not _same_definition(known, name, message_type):
                raise DeclarationError(
                    f"{_where(message_type)} cannot be declared as {name!r}: "
                    f"{_where(known.type)} is declared as {known.name!r}",
                )
        declaration = Declaration(
            name=name,
            type=message_type,
            layer=layer,
            priority=priority,
            max_attempts=max_attempts,
        )
        _by_name[name] = _by_type[message_type] = declaration
        return message_type

    return declare


def declaration_of(value: object) -> Declaration:
    """Return the declaration of a message or a message type; raises DeclarationError if there is none."""
    message_type = value if isinstance(value, type) else type(value)
    declaration = _by_type.get(message_type)
    if declaration is None:
        raise DeclarationError(f"{_where(message_type)} is not a declared message type")
    return declaration


def declared_type(name: str) -> Any:
    """Return the type declared under a name; None where there is none."""
    declaration = _by_name.get(name)
    return None if declaration is None else declaration.type


def _same_definition(known: Declaration, name: str, message_type: type) -> bool:
    # A module that is imported again (a reload, a doctest) declares the same class anew.
    return known.name == name and _where(known.type) == _where(message_type)


def _where(message_type: type) -> str:
    return f"{message_type.__module__}.{message_type.__qualname__}"
