"""How many tenants can be made a second, each with its first message?

All are closed again within the time: each is one file at the end. Beside it, in turns: the same tables and one row
by raw apsw (open, schema, insert, close), and what limits both, a file of the same size that is written, synced
and linked to its name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import apsw

import tenantq
from bench._measure import in_turns, median, paired
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from tenantq.sqlfile import load_statements

FILE_BYTES = 77_824
"""What a new tenant's file holds."""

FOLDERS = 256
"""As many as a store has shards."""

INSERT = "INSERT INTO queue (queue, visible_at, enqueued_at, payload) VALUES ('mail', 1, 1, '{}')"

SCHEMA = (
    load_statements("tenantq", "schema.sql")["create_schema"]
    + load_statements("tenantq", "migrations.sql")["to_2"]
)


def run(options: Options) -> Result:
    contenders: dict[str, Callable[[Options], float]] = {
        "tenantq": tenants,
        "raw apsw": raw_files,
        "file, sync, link": bare_files,
    }
    rates = dict(
        zip(
            contenders,
            in_turns(
                options.iterations,
                *(lambda make=make: make(options) for make in contenders.values()),
                warm_up=0 if options.is_smoke else 1,
            ),
            strict=True,
        ),
    )
    rows: list[Row] = [
        {"contender": name, "tenants/s": round(median(found)), "ms": 1000 / median(found)}
        for name, found in rates.items()
    ]
    return Result(
        rows=rows,
        parameters={"durability": options.durability, "file_bytes": FILE_BYTES},
        ratios=[paired(f"tenantq / {name}", rates["tenantq"], rates[name]) for name in list(rates)[1:]],
        figure=chart(
            [{"contender": name, "at": "one thread", "rate": median(found)} for name, found in rates.items()],
            x="at",
            y="rate",
            by="contender",
            title="Tenants made a second",
            y_label="tenants/s",
            is_line=False,
        ),
    )


def tenants(options: Options) -> float:
    """Return the tenants a second that a store makes."""
    with options.directory() as directory:
        store = tenantq.open(directory, durability=options.durability)

        def make(number: int) -> None:
            store.tenant(f"tenant-{number}").enqueue("mail", {})

        return rate_of(make, options, end=store.close)


def raw_files(options: Options) -> float:
    """Return the files a second that apsw makes with the same tables."""
    with options.directory() as directory:
        folders = make_folders(directory)

        def make(number: int) -> None:
            connection = apsw.Connection(str(folders[number % FOLDERS] / f"{number}.db"))
            connection.execute(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {options.durability}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(SCHEMA)
            connection.execute("COMMIT")
            connection.execute(INSERT)
            connection.close()

        return rate_of(make, options)


def bare_files(options: Options) -> float:
    """Return the files a second that are written, synced and linked."""
    with options.directory() as directory:
        folders, content = make_folders(directory), bytes(FILE_BYTES)

        def make(number: int) -> None:
            folder = folders[number % FOLDERS]
            temporary = folder / f".{number}"
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            os.write(descriptor, content)
            os.fdatasync(descriptor)
            os.close(descriptor)
            os.link(temporary, folder / f"{number}.db")
            temporary.unlink()

        return rate_of(make, options)


def make_folders(directory: Path) -> list[Path]:
    """Make the folders of a store."""
    folders = [directory / f"{number:02x}" for number in range(FOLDERS)]
    for folder in folders:
        folder.mkdir()
    return folders


def rate_of(make: Callable[[int], None], options: Options, end: Callable[[], None] = lambda: None) -> float:
    """Return how many a second are made in a trial, what ends it included."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < options.window:
        make(count)
        count += 1
    end()
    return count / (time.perf_counter() - started)
