"""How long does it take to restore a tenant of 1 GB, and how soon is the first message claimed?

Beside it, in turns: `cp` of the same file with a `sync` of the copy, since what a restore has put in place
survives power loss, and `cp` alone. A restore checks every row against every index and gives back what was
claimed besides.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import tenantq
from bench._measure import in_turns, median, paired
from bench._options import Options
from bench._report import Result, Row

MESSAGE_BYTES = 1000

BATCH = 1000


def run(options: Options) -> Result:
    size = options.pick(1_000_000_000, 2_000_000)
    with (
        options.directory() as directory,
        tenantq.open(directory / "store", durability=options.durability) as store,
    ):
        saved = make_backup(directory, size)
        firsts: list[float] = []

        def restore() -> float:
            started = time.perf_counter()
            store.restore("acme", saved)
            restored = time.perf_counter()
            acme = store.tenant("acme")
            assert acme.claim("mail")
            firsts.append(time.perf_counter() - restored)
            return restored - started

        def copy_and_sync() -> float:
            target = directory / "copy.db"
            started = time.perf_counter()
            subprocess.run(["cp", saved, target], check=True)
            subprocess.run(["sync", target], check=True)
            seconds = time.perf_counter() - started
            target.unlink()
            return seconds

        def copy() -> float:
            target = directory / "copy.db"
            started = time.perf_counter()
            subprocess.run(["cp", saved, target], check=True)
            seconds = time.perf_counter() - started
            target.unlink()
            return seconds

        ours, synced, plain = in_turns(options.iterations, restore, copy_and_sync, copy)
        bytes_ = saved.stat().st_size
    contenders = {"tenantq restore": ours, "cp, sync": synced, "cp": plain}
    rows: list[Row] = [
        {
            "contender": name,
            "seconds": round(median(found), 3),
            "MB/s": round(bytes_ / 1e6 / median(found)),
            "first claim ms": round(1000 * median(firsts), 2) if found is ours else None,
        }
        for name, found in contenders.items()
    ]
    return Result(
        rows=rows,
        parameters={"bytes": bytes_, "message_bytes": MESSAGE_BYTES, "durability": options.durability},
        ratios=[
            paired("tenantq restore / cp, sync", ours, synced, at_most=None if options.is_smoke else 1.3),
            paired("tenantq restore / cp", ours, plain),
        ],
    )


def make_backup(directory: Path, size: int) -> Path:
    """Make a backup of so many bytes, of messages with payloads of MESSAGE_BYTES."""
    with tenantq.open(directory / "source") as source:
        acme = source.tenant("acme")
        body = b"x" * MESSAGE_BYTES
        while not acme.path.exists() or acme.path.stat().st_size < size:
            acme.enqueue_many("mail", [body] * BATCH)
        acme.claim("mail", 100)
    return acme.path
