"""One run of Litestream over one file, which ends when the file is replicated."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from tenantq_tools.litestream.binary import Binary
from tenantq_tools.litestream.errors import replica_error
from tenantq_tools.litestream.settings import Settings, config_of_one, directory_of, write_text

__all__ = ["run_once"]

ONCE_TIMEOUT = 600.0
"""Seconds for one tenant's file, all of it."""


def run_once(settings: Settings, binary: Binary, tenant_id: str, path: Path, *, snapshot: bool) -> None:
    """Send what a file has; with `snapshot` all of it, and remove what is kept longer than it is to be.

    Beside the Litestream that has the file registered too. Raises ReplicaError, LitestreamFailed.
    """
    config = directory_of(path.parent.parent) / f"once-{secrets.token_hex(6)}.yml"
    more = ("-force-snapshot", "-enforce-retention") if snapshot else ()
    try:
        write_text(config, config_of_one(settings, str(path), settings.url_of(path)))
        done = binary.run(
            "replicate", "-config", str(config), "-no-expand-env", "-once", *more, timeout=ONCE_TIMEOUT
        )
    finally:
        config.unlink(missing_ok=True)
    if done.returncode != 0:
        raise replica_error(_reason(done.stdout, done.stderr, done.returncode), tenant_id)


def _reason(out: str, err: str, code: int) -> str:
    """Return the last error in what Litestream printed."""
    for line in reversed([*out.splitlines(), *err.splitlines()]):
        try:
            record = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.MsgspecError:
            if line.strip():
                return line.strip()
            continue
        if record.get("level") == "ERROR":
            return f"{record.get('msg')}: {record.get('error', '')}"
    return f"it ended with {code}"
