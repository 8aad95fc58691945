"""The library's log on standard error, for the commands that run until they are stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["show_log", "with_log_level"]

F = TypeVar("F", bound=Callable[..., Any])

KEYS = ("service", "tenant", "queue", "message_id", "attempt")
"""What a record can be about, in the order in which it is shown."""


def with_log_level(function: F) -> F:
    """Add `--log-level`; the parameter is `log_level`."""
    option = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="What is logged on standard error.",
    )
    return option(function)


def show_log(level: str) -> None:
    """Print what is logged from a level on, a line each, with what it is about; of others, warnings only."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level="WARNING", handlers=[handler], force=True)
    logging.getLogger("tenantq").setLevel(level.upper())


class _Formatter(logging.Formatter):
    """Lines that end with the constant keys of tenantq's records."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the first line of a record."""
        about = [(key, getattr(record, key, None)) for key in KEYS]
        given = "".join(f" {key}={value!r}" for key, value in about if value is not None)
        return super().formatMessage(record) + given
