"""The shared layer, where its extra is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenantq_tools.cli._failures import MissingExtra

if TYPE_CHECKING:
    from tenantq_bridge import PostgresQueue

__all__ = ["connect"]


@contextlib.contextmanager
def connect(dsn: str) -> Iterator[PostgresQueue]:
    """Give the queue at a DSN and close it at the end. Raises MissingExtra without the extra `bridge`."""
    try:
        from tenantq_bridge import PostgresQueue  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in ("psycopg", "psycopg_pool"):
            raise
        raise MissingExtra(exc.name or "psycopg", "bridge") from exc
    with contextlib.closing(PostgresQueue(dsn)) as queue:
        yield queue
