"""What the commands print: text that no terminal acts on, tables, and JSON in ASCII, one line an item."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec

from tenantq import Message, PeriodicMessage, UndeliverableEvent
from tenantq.clock import to_datetime

__all__ = [
    "describe",
    "describe_event",
    "describe_periodic",
    "json_line",
    "note",
    "paint",
    "print_json",
    "print_table",
    "printable",
    "shorten",
]

_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def printable(text: str) -> str:
    """Return text as one line: control characters, line ends and direction marks are spelled out."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def shorten(body: str | bytes, limit: int) -> str:
    """Return a payload for people: its first characters, or the first bytes in hex, and how much there is."""
    if isinstance(body, bytes):
        shown = body[: limit // 2]
        return f"<{len(body)} bytes> {shown.hex()}{'...' if len(shown) < len(body) else ''}"
    if len(body) <= limit:
        return printable(body)
    return f"{printable(body[:limit])}... ({len(body)} characters)"


def describe(message: Message[Any]) -> dict[str, object]:
    """Return a message as the JSON form has it.

    The payload is `payload`, exactly as it is kept; bytes are `payload_base64`, and text that is not JSON,
    which only another program can have written, is `payload_text`.
    """
    described: dict[str, object] = {
        "id": message.id,
        "tenant": message.tenant,
        "queue": message.queue,
        "priority": message.priority,
        "attempts": message.attempts,
        "max_attempts": message.max_attempts,
        "key": message.key,
        "headers": dict(message.headers),
        "enqueued_at": message.enqueued_at.isoformat(),
        "visible_at": message.visible_at.isoformat(),
        "error": message.error,
    }
    return described | _payload(message.body)


def describe_periodic(periodic: PeriodicMessage) -> dict[str, object]:
    """Return a periodic message as the JSON form has it; the payload as in `describe`."""
    described: dict[str, object] = {
        "name": periodic.name,
        "cron": periodic.cron,
        "timezone": periodic.timezone,
        "missed": periodic.missed.value,
        "next_at": None if periodic.next_at is None else periodic.next_at.isoformat(),
        "last_at": None if periodic.last_at is None else periodic.last_at.isoformat(),
        "error": periodic.error,
        "queue": periodic.queue,
        "priority": periodic.priority,
        "max_attempts": periodic.max_attempts,
        "key": periodic.key,
        "headers": dict(periodic.headers),
    }
    return described | _payload(periodic.body)


def describe_event(tenant: str, event: UndeliverableEvent) -> dict[str, object]:
    """Return an event that Postgres refused as the JSON form has it; the payload as in `describe`."""
    described: dict[str, object] = {
        "tenant": tenant,
        "place": event.seq,
        "event_id": event.event_id,
        "topic": event.topic,
        "priority": event.priority,
        "max_attempts": event.max_attempts,
        "headers": {} if event.headers is None else msgspec.Raw(event.headers.encode()),
        "emitted_at": to_datetime(event.emitted_ns).isoformat(),
        "refused_at": to_datetime(event.refused_ns).isoformat(),
        "error": event.error,
    }
    return described | _payload(event.body)


def _payload(body: str | bytes) -> dict[str, object]:
    if isinstance(body, bytes):
        return {"payload_base64": base64.b64encode(body).decode()}
    try:
        return {"payload": msgspec.Raw(msgspec.json.format(body.encode(), indent=-1))}
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return {"payload_text": body}


def json_line(value: object) -> str:
    """Return a value as one line of JSON in printable ASCII: safe on a terminal, the same everywhere."""
    return _NOT_ASCII.sub(_escape, msgspec.json.encode(value).decode())


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json_line(value))


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header: numbers to the right, text to the left, the last column as long as it is."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    numeric = [True] * len(header)
    for row in cells[1:]:
        numeric = [seen and _is_number(cell) for seen, cell in zip(numeric, row, strict=True)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        parts = [
            cell.rjust(width) if is_numeric else cell.ljust(width)
            for cell, width, is_numeric in zip(row, widths, numeric, strict=True)
        ]
        line = "  ".join(parts).rstrip()
        click.echo(paint(line, bold=True) if number == 0 else line)


def note(text: str) -> None:
    """Print a line for people on standard error, beside a result on standard output."""
    click.echo(printable(text), err=True)


def paint(text: str, **style: Any) -> str:
    """Return text in a style on a terminal, and as it is anywhere else or where NO_COLOR is set."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return click.style(text, **style)
    return text


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else printable(str(value))


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).lstrip("-").isdigit()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
