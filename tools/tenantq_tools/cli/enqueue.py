"""`tenantq enqueue`: one message from the command line, or many as JSON lines."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import click
import msgspec

from tenantq import Store, TenantqError
from tenantq.naming import check_tenant_id
from tenantq_tools.cli._batches import Batches
from tenantq_tools.cli._entries import Entry, EntryParser, Options, check_entry, parse_moment, parse_payload
from tenantq_tools.cli._failures import PROBLEM
from tenantq_tools.cli._lines import Line, read_lines
from tenantq_tools.cli._options import open_store, with_json, with_message, with_store
from tenantq_tools.cli._output import note, print_json, print_table, printable
from tenantq_tools.cli._progress import progress
from tenantq_tools.cli._signals import on_signals

__all__ = ["enqueue"]

SHOWN_COUNTS = 50
"""Rows of the summary; with --json there are all of them."""

KEPT_PROBLEMS = 1000
"""Refused lines in the JSON document; on standard error there are all of them."""


@click.command()
@click.argument("tenant", required=False)
@click.argument("queue", required=False)
@click.argument("payload", required=False)
@with_message
@click.option(
    "--file", "source", type=click.File("rb"), metavar="FILE", help="Read JSON lines; - is standard input."
)
@click.option("--tenant-field", default="tenant", show_default=True, metavar="NAME", help="Names the tenant.")
@click.option("--queue-field", default="queue", show_default=True, metavar="NAME", help="Names the queue.")
@click.option("--payload-field", default="payload", show_default=True, metavar="NAME", help="Has the payload.")
@click.option("--tenant", "fixed_tenant", metavar="T", help="The tenant of lines that name none.")
@click.option("--queue", "fixed_queue", metavar="Q", help="The queue of lines that name none.")
@click.option("--bare", is_flag=True, help="Take no options (delay, key, ...) from a line's other fields.")
@click.option(
    "--on-error",
    type=click.Choice(["refuse", "keep"]),
    default="refuse",
    show_default=True,
    help="With a bad line: refuse all lines, or keep the good ones.",
)
@click.option("--rejects", type=click.File("wb", lazy=True), metavar="FILE", help="Write the refused lines there.")
@click.option("--existing", is_flag=True, help="Make no new tenant: an unknown one is an error.")
@with_store()
@with_json
@click.pass_context
def enqueue(
    ctx: click.Context,
    /,
    *,
    tenant: str | None,
    queue: str | None,
    payload: str | None,
    text: bool,
    raw: bool,
    source: BinaryIO | None,
    store_path: str,
    as_json: bool,
    existing: bool,
    fixed_tenant: str | None,
    fixed_queue: str | None,
    tenant_field: str,
    queue_field: str,
    payload_field: str,
    bare: bool,
    on_error: str,
    rejects: BinaryIO | None,
    **given: Any,
) -> None:
    """Enqueue one message, or with --file one for each line.

    PAYLOAD is JSON, or with --text or --raw what you like; - reads it from standard input. The store and the
    tenant are made if they are not there. What is reported as enqueued survives power loss.

    A line is a JSON object with the fields tenant, queue and payload, or those that the --...-field options
    name. The fields delay, at (ISO 8601), priority, key, max_attempts and headers (an object of strings) are
    options of its message; the options given here stand for what a line does not say. Empty lines are skipped.

    All lines are checked first, and one that is bad refuses them all, so that the command can be given again
    once it is mended; with --on-error keep the lines are enqueued as they are read. Bad lines are named by
    their numbers, and make the exit status 1. A tenant whose file fails does not keep the others from theirs.

    \b
    Examples:
      tenantq enqueue acme report.build '{"month": "2026-11"}' --delay 60 --key report:2026-11
      tenantq enqueue acme note --text 'call Ada'
      tenantq enqueue --file webhooks.jsonl --queue-field event
      journal | tenantq enqueue --file - --tenant acme --on-error keep --rejects bad.jsonl
    """
    options = Options(
        delay=given["delay"] or 0,
        at=None if given["at"] is None else parse_moment(given["at"]),
        priority=given["priority"],
        key=given["key"],
        max_attempts=given["max_attempts"],
    )
    if source is None:
        if tenant is None or queue is None or payload is None:
            raise click.UsageError("give TENANT QUEUE PAYLOAD, or --file FILE", ctx)
        value = parse_payload(payload, text=text, raw=raw)
        _enqueue_one(store_path, tenant, queue, value, options, create=not existing, as_json=as_json)
        return
    if tenant is not None or text or raw or options.key is not None:
        raise click.UsageError("--file takes neither TENANT QUEUE PAYLOAD nor --text, --raw or --key", ctx)
    if fixed_tenant is not None:
        check_tenant_id(fixed_tenant)
    check_entry("any" if fixed_queue is None else fixed_queue, None, options)
    parser = EntryParser(
        tenant_field=tenant_field,
        queue_field=queue_field,
        payload_field=payload_field,
        tenant=fixed_tenant,
        queue=fixed_queue,
        options=options,
        is_bare=bare,
    )
    with contextlib.ExitStack() as stack:
        if on_error == "refuse" and not source.seekable():
            source = stack.enter_context(_copied(source))
        load = _Load(store_path, stack, parser, rejects=rejects, create=not existing)
        stack.enter_context(on_signals(load.stopping.set))
        if on_error == "refuse":
            start = source.tell()
            load.check(source)
            source.seek(start)
        if not load.refused and not load.stopping.is_set():
            load.enqueue(source)
        load.print(as_json=as_json)
    if load.refused or load.stopping.is_set():
        ctx.exit(PROBLEM)


def _enqueue_one(
    store_path: str,
    tenant_id: str,
    queue: str,
    payload: object,
    options: Options,
    *,
    create: bool,
    as_json: bool,
) -> None:
    check_tenant_id(tenant_id)
    check_entry(queue, payload, options)  # before a store is made for it
    with open_store(store_path, create=create, durability="full") as store:
        id_ = store.tenant(tenant_id, create=create).enqueue(queue, payload, **msgspec.structs.asdict(options))
    if as_json:
        print_json({"tenant": tenant_id, "queue": queue, "id": id_})
    else:
        click.echo(f"{printable(tenant_id)}: message {id_} is in queue {printable(queue)}")


class _Load:
    """One run over a file of lines: what was enqueued, and what was refused."""

    def __init__(
        self,
        store_path: str,
        stack: contextlib.ExitStack,
        parser: EntryParser,
        *,
        rejects: BinaryIO | None,
        create: bool,
    ) -> None:
        self.stopping = threading.Event()
        self.refused = 0
        self._lines = 0
        self._problems: list[dict[str, object]] = []
        self._parser = parser
        self._rejects = rejects
        self._create = create
        self._store_path = store_path
        self._stack = stack
        self._store: Store | None = None
        self._batches = Batches(self._opened, self._refuse_entry, create=create)

    def check(self, source: BinaryIO) -> None:
        """Find the lines that would be refused; nothing is enqueued, and no store or tenant is made."""
        tenants: dict[str, TenantqError | None] = {}
        for entry in self._entries(source, "checking"):
            if entry is not None:
                if entry.tenant not in tenants:
                    tenants[entry.tenant] = self._fault_of(entry.tenant)
                fault = tenants[entry.tenant]
                if fault is not None:
                    self._refuse(entry.line, fault)

    def enqueue(self, source: BinaryIO) -> None:
        """Enqueue the lines in batches; what was read before a pause or a signal is enqueued by then."""
        for entry in self._entries(source, "enqueueing"):
            if entry is None:
                self._batches.flush()
            else:
                self._batches.add(entry)
        self._batches.flush()

    def print(self, *, as_json: bool) -> None:
        """Print what became of the lines, by tenant and queue."""
        counts = self._batches.counts
        enqueued = sum(count.enqueued for count in counts.values())
        known = sum(count.known for count in counts.values())
        if as_json:
            print_json(
                {
                    "lines": self._lines,
                    "enqueued": enqueued,
                    "known": known,
                    "refused": self.refused,
                    "stopped": self.stopping.is_set(),
                    "counts": [
                        {"tenant": tenant, "queue": queue, "enqueued": count.enqueued, "known": count.known}
                        for (tenant, queue), count in sorted(counts.items())
                    ],
                    "problems": self._problems,
                },
            )
            return
        if counts:
            shown = sorted(counts.items())[:SHOWN_COUNTS]
            print_table(
                ("ENQUEUED", "KNOWN", "TENANT", "QUEUE"),
                [(count.enqueued, count.known, tenant, queue) for (tenant, queue), count in shown],
            )
            if len(counts) > SHOWN_COUNTS:
                click.echo(f"and {len(counts) - SHOWN_COUNTS} more, which --json lists")
        click.echo(f"{enqueued} enqueued, {known} known by their keys, {self.refused} lines refused")
        if self.refused and not counts:
            note("Nothing was enqueued.")
        if self.stopping.is_set():
            note(f"Stopped after line {self._lines}: the lines up to there are done." if counts else "Stopped.")

    def _entries(self, source: BinaryIO, what: str) -> Iterator[Entry | None]:
        self._lines = 0
        with progress(what, _size_of(source)) as advance:
            for line in read_lines(source, self.stopping):
                if line is None:
                    yield None
                    continue
                self._lines = line.number
                advance(line.size)
                if line.text is not None and not line.text.strip():
                    continue
                try:
                    entry = self._parser.parse(line)
                except TenantqError as exc:
                    self._refuse(line, exc)
                else:
                    yield entry

    def _fault_of(self, tenant_id: str) -> TenantqError | None:
        """Return why a tenant's file cannot be written to, as far as reading it can tell."""
        try:
            if self._create and not os.path.isdir(self._store_path):  # noqa: PTH112 - made later
                return None
            self._opened().tenant(tenant_id, create=self._create).next_due()
        except TenantqError as exc:
            return exc
        return None

    def _opened(self) -> Store:
        if self._store is None:
            store = open_store(self._store_path, create=self._create, durability="full")
            self._store = self._stack.enter_context(store)
        return self._store

    def _refuse_entry(self, entry: Entry, error: TenantqError) -> None:
        self._refuse(entry.line, error)

    def _refuse(self, line: Line, error: TenantqError) -> None:
        self.refused += 1
        note(f"line {line.number}: {error.message}")
        if len(self._problems) < KEPT_PROBLEMS:
            self._problems.append({"line": line.number, "reason": error.message})
        if self._rejects is not None and line.text is not None:
            self._rejects.write(line.text + b"\n")


@contextlib.contextmanager
def _copied(source: BinaryIO) -> Iterator[BinaryIO]:
    """Give a copy of what a pipe holds, which can be read twice."""
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(source, copy)
        copy.seek(0)
        yield copy


def _size_of(source: BinaryIO) -> int | None:
    try:
        found = os.fstat(source.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
