"""The core's verbs as coroutines: a line a verb, with the parameters and the words of the core's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["Caller", "Verb", "awaitable"]

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")

Verb = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
"""A method that is awaited."""


class Caller(Protocol):
    """What has verbs of the core run by a thread."""

    async def _call(self, verb: Callable[[Any], T], *, merges: bool = False) -> T:
        """Run a verb on the core's object; with `merges`, maybe in one transaction with others."""
        ...


def awaitable(method: Callable[Concatenate[S, P], T], *, merges: bool = False) -> Verb[P, T]:
    """Return a method of the core's as one that is awaited."""

    @functools.wraps(method)
    async def call(self: Caller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def verb(core: S) -> T:
            found: Callable[P, T] = getattr(core, method.__name__)  # a subclass may have its own
            return found(*args, **kwargs)

        return await self._call(verb, merges=merges)

    return call
