"""A line of JSON as a message to enqueue, checked by the rules of the queue that it goes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click
import msgspec

from tenantq import InvalidArgument, PayloadError
from tenantq.arguments import (
    DEFAULT_MAX_ATTEMPTS,
    check_headers,
    check_max_attempts,
    check_priority,
    visible_ns,
)
from tenantq.naming import check_name, check_tenant_id
from tenantq.payload import encode_payload
from tenantq_tools.cli._lines import MAX_LINE_BYTES, Line

__all__ = ["Entry", "EntryParser", "Options", "check_entry", "parse_moment", "parse_payload"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a message is enqueued: what a line says of it, and where it says nothing, the command."""

    delay: float = 0
    at: datetime | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    headers: Mapping[str, str] | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A message to enqueue."""

    tenant: str
    queue: str
    payload: Any
    options: Options
    line: Line


class EntryParser(msgspec.Struct, frozen=True, kw_only=True):
    """Which fields of a line are what, and what stands for those that it has not."""

    tenant_field: str = "tenant"
    queue_field: str = "queue"
    payload_field: str = "payload"
    tenant: str | None = None
    queue: str | None = None
    options: Options = Options()
    is_bare: bool = False
    """Whether a line's fields for delay, priority and the like are no options of its message."""

    def parse(self, line: Line) -> Entry:
        """Return what a line says. Raises TenantqError with the reason why it is refused."""
        if line.text is None:
            raise PayloadError(f"the line is longer than {MAX_LINE_BYTES} bytes")
        fields = _decode(line.text)
        if not isinstance(fields, dict):
            raise InvalidArgument("the line is not a JSON object")
        entry = Entry(
            tenant=check_tenant_id(self._named(fields, self.tenant_field, self.tenant, "--tenant")),
            queue=self._named(fields, self.queue_field, self.queue, "--queue"),
            payload=self._named(fields, self.payload_field),
            options=self.options if self.is_bare else self._options(fields),
            line=line,
        )
        check_entry(entry.queue, entry.payload, entry.options)
        return entry

    def _named(self, fields: dict[str, Any], field: str, default: str | None = None, option: str = "") -> Any:
        if field in fields:
            return fields[field]
        if default is None:
            otherwise = f", and {option} is not given" if option else ""
            raise InvalidArgument(f"the line has no field {field!r}{otherwise}")
        return default

    def _options(self, fields: dict[str, Any]) -> Options:
        taken = {self.tenant_field, self.queue_field, self.payload_field}
        given = {
            name: fields[name]
            for name in Options.__struct_fields__
            if name not in taken and fields.get(name) is not None
        }
        if "at" in given:
            given["at"] = parse_moment(given["at"])
            given.setdefault("delay", 0)  # of the two, what the line says
        elif "delay" in given:
            given["at"] = None
        return msgspec.structs.replace(self.options, **given) if given else self.options


def check_entry(queue: str, payload: object, options: Options) -> None:
    """Raise InvalidArgument or PayloadError where an enqueue would."""
    check_name(queue)
    visible_ns(0, options.delay, options.at)
    check_priority(options.priority)
    if options.key is not None:
        check_name(options.key, "key")
    check_max_attempts(options.max_attempts)
    check_headers(options.headers)
    encode_payload(payload)


def parse_moment(text: object) -> datetime:
    """Return a moment in ISO 8601 with its time zone. Raises InvalidArgument."""
    try:
        moment = datetime.fromisoformat(text)  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise InvalidArgument(
            f"{text!r} is not a time in ISO 8601",
            hint="write it as 2026-11-30T08:00:00Z or 2026-11-30T08:00:00+01:00",
        ) from exc
    visible_ns(0, at=moment)
    return moment


def _decode(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise PayloadError(f"the line is not JSON: {exc}") from exc


def parse_payload(argument: str, *, text: bool, raw: bool) -> object:
    """Return the payload that an argument of the command is; - stands for standard input."""
    data = sys.stdin.buffer.read() if argument == "-" else os.fsencode(argument)
    if text and raw:
        raise click.UsageError("a payload is either --text or --raw")
    if raw:
        return data
    try:
        return data.decode() if text else msgspec.json.decode(data)
    except UnicodeDecodeError as exc:
        raise PayloadError(f"the payload is not text in UTF-8: {exc}", hint="--raw sends bytes") from exc
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise PayloadError(
            f"the payload is not JSON: {exc}",
            hint="--text sends text as a JSON string, --raw sends bytes; in JSON a string has double quotes",
        ) from exc
