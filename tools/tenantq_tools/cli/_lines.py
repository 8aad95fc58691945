"""JSON lines from a file or a pipe: numbered, bounded in length, and never waited for with work at hand."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

__all__ = ["MAX_LINE_BYTES", "Line", "read_lines"]

MAX_LINE_BYTES = 128 * 1024 * 1024
"""A payload of the largest size that a queue takes, escaped, and its fields; more is refused, not kept."""

CHUNK = 256 * 1024
"""Bytes read at once."""

LOOK = 0.2
"""Seconds between two looks for a signal while a pipe is silent."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of the input."""

    number: int
    """Counted from 1, empty lines included."""
    text: bytes | None
    """Without its line end; None where it is longer than MAX_LINE_BYTES."""
    size: int
    """Bytes that it took."""


def read_lines(stream: BinaryIO, stopping: threading.Event) -> Iterator[Line | None]:
    """Yield the lines, and None before each wait for a pipe that has no more at the moment.

    Ends where the input does, or at a line's end after `stopping` was set.
    """
    number = 0
    begun: list[bytes] = []  # the parts of a line whose end has not come; joined once, however many
    size = 0
    for chunk in _chunks(stream, stopping):
        if chunk is None:
            yield None
            continue
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            number += 1
            yield _line(number, begun, end, size + len(end))
            begun, size = [], 0
            if stopping.is_set():
                return
        size += len(rest)
        if size <= MAX_LINE_BYTES:
            begun.append(rest)
        else:
            begun.clear()
    if size and not stopping.is_set():
        yield _line(number + 1, begun, b"", size)


def _line(number: int, begun: list[bytes], end: bytes, size: int) -> Line:
    if size > MAX_LINE_BYTES:
        return Line(number, None, size + 1)
    text = b"".join((*begun, end))
    return Line(number, text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text, size + 1)


def _chunks(stream: BinaryIO, stopping: threading.Event) -> Iterator[bytes | None]:
    try:
        descriptor = stream.fileno()
    except OSError:  # no file behind it
        while chunk := stream.read(CHUNK):
            yield chunk
        return
    while not stopping.is_set():
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
            while not select.select([descriptor], [], [], LOOK)[0]:
                if stopping.is_set():
                    return
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        yield chunk
