"""Lines are split where they end, however they come, and none is kept that is too long."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from tenantq_tools.cli import _lines
from tenantq_tools.cli._lines import read_lines


def texts(data: bytes, stopping: threading.Event | None = None) -> list[tuple[int, bytes | None, int]]:
    stream = io.BytesIO(data)
    lines = [line for line in read_lines(stream, stopping or threading.Event()) if line is not None]
    return [(line.number, line.text, line.size) for line in lines]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_how_they_are_read(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(_lines, "CHUNK", chunk)
    assert texts(b"one\n\nthree\nlast") == [(1, b"one", 4), (2, b"", 1), (3, b"three", 6), (4, b"last", 5)]
    assert texts(b"one\n") == [(1, b"one", 4)]
    assert texts(b"") == []


@pytest.mark.parametrize("chunk", [1, 3, 4, 1000])
def test_a_line_that_is_too_long_is_dropped_and_the_next_is_not(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(_lines, "CHUNK", chunk)
    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 5)
    assert texts(b"12345\n123456\n12345\n" + b"x" * 50 + b"\nnext\n" + b"y" * 50) == [
        (1, b"12345", 6),
        (2, None, 7),
        (3, b"12345", 6),
        (4, None, 51),
        (5, b"next", 5),
        (6, None, 51),
    ]


def test_a_mark_at_the_beginning_is_no_part_of_the_first_line() -> None:
    assert texts(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n") == [(1, b"one", 7), (2, b"\xef\xbb\xbftwo", 7)]


def test_a_stop_ends_after_the_line_that_was_given() -> None:
    stopping = threading.Event()
    lines = read_lines(io.BytesIO(b"one\ntwo\nthree"), stopping)
    first = next(lines)
    assert first is not None
    assert first.number == 1
    stopping.set()
    assert list(lines) == []


def test_a_silent_pipe_is_told_before_it_is_waited_for() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        os.write(writing, b"one\ntw")
        lines = read_lines(stream, threading.Event())
        first = next(lines)
        assert first is not None
        assert first.text == b"one"
        assert next(lines) is None
        os.write(writing, b"o\n")
        second = next(lines)
        assert second is not None
        assert second.text == b"two"
        os.close(writing)
        assert [line for line in lines if line is not None] == []


def test_a_pipe_that_stays_silent_can_be_left() -> None:
    reading, writing = os.pipe()
    stopping = threading.Event()
    with os.fdopen(reading, "rb") as stream:
        lines = read_lines(stream, stopping)
        assert next(lines) is None
        stopping.set()
        assert list(lines) == []
    os.close(writing)


def test_a_file_is_read_from_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    with (tmp_path / "lines").open("rb", buffering=0) as stream:
        stream.seek(4)
        (line,) = [line for line in read_lines(stream, threading.Event()) if line is not None]
    assert (line.number, line.text) == (1, b"two")
