"""The library's log on standard error, for the commands that run until they are stopped."""

from __future__ import annotations

import logging

__all__ = ["show_log"]

KEYS = ("service", "tenant", "queue", "message_id", "attempt")
"""What a record can be about, in the order in which it is shown."""


def show_log(level: str) -> None:
    """Print what is logged from a level on, a line each, with what it is about."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Formatter(logging.Formatter):
    """Lines that end with the constant keys of tenantq's records."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the first line of a record."""
        about = [(key, getattr(record, key, None)) for key in KEYS]
        given = "".join(f" {key}={value!r}" for key, value in about if value is not None)
        return super().formatMessage(record) + given
