"""Where a forwarder's events go: an interface, with `PostgresQueue` and `PgmqTarget` behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from tenantq_bridge._postgres import Database, Session
from tenantq_bridge.schema import Schema

__all__ = ["Forwarded", "Target"]


class Forwarded(NamedTuple):
    """What one batch did, once it is committed."""

    moved: list[str]
    """The tenants whose states moved, and whose events the target has."""
    forwarded: int
    """Their events, but for those that were forwarded before."""
    queues: list[str]
    """The queues to ring."""


class Target(Protocol):
    """What a forwarder hands events to.

    The tenants' states are in the target's own database, and move in the transaction that inserts the events.
    That is what makes each arrive once: a target elsewhere could not promise it.
    """

    @property
    def kind(self) -> str:
        """What it is, in a word, for people and metrics."""
        ...

    @property
    def database(self) -> Database:
        """The database with the states, and with what the events go to."""
        ...

    @property
    def schema(self) -> Schema:
        """The schema of the states."""
        ...

    def forward(self, session: Session, params: Mapping[str, Any]) -> Forwarded:
        """Move the tenants' states and insert those staged events whose states moved; the caller commits."""
        ...

    def ring(self, queue: str) -> None:
        """Wake who waits for a queue, after the commit."""
        ...
