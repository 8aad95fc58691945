"""Checksums of messages and events: they find a flipped byte in a payload, which SQLite's own check cannot."""

from __future__ import annotations

import zlib

__all__ = ["checksum"]


def checksum(headers: str | None, body: str | bytes) -> int:
    """Return the CRC-32 of what a message or an event holds, as it is kept."""
    start = 0 if headers is None else zlib.crc32(headers.encode())
    return zlib.crc32(body.encode() if isinstance(body, str) else body, start)
