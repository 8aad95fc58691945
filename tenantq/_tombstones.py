"""What is left where a tenant was: a small file beside the place of its own, so that no late call brings it back.

It counts only where the tenant's file is not: making a tenant looks for it, opening one does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from tenantq.errors import TenantDeleted, TenantFileError, TenantGone, TenantMoved

__all__ = ["SUFFIX", "Seal", "Tombstone", "Went", "moment", "reached", "tombstone_path", "tombstones_in"]

SUFFIX = ".deleted"


class Went(StrEnum):
    """How a tenant left a store."""

    DELETED = "deleted"
    MOVED = "moved"


class Seal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a file says of itself that is no tenant any more."""

    went: Went
    at: str
    """When (ISO 8601, UTC)."""
    to: str | None = None
    """The export that a moved tenant is in, or will be."""
    transit: str | None = None
    """A UUID of this one move."""
    taken_by: str | None = None
    """The store that has imported it."""

    @classmethod
    def of(cls, meta: dict[str, str]) -> Self:
        """Read it from a sealed file's meta."""
        return msgspec.json.decode(meta["sealed"], type=cls)

    def error(self, tenant: str | None, path: str) -> TenantGone:
        """Return what a call on such a file raises."""
        named = "a tenant" if tenant is None else f"tenant {tenant!r}"
        if self.went is Went.DELETED:
            return TenantDeleted(f"{named} was deleted at {self.at}", at=self.at, tenant=tenant, path=path)
        text = f"{named} was exported to {self.to} at {self.at}"
        return TenantMoved(text, at=self.at, to=self.to, tenant=tenant, path=path)


class Tombstone(Seal, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant that was in a store and is no more."""

    tenant: str
    file_id: str | None = None
    """The id of the file that it had; None where it could not be read."""
    came_by: str | None = None
    """The move that had brought it here."""

    @classmethod
    def read(cls, path: Path) -> Tombstone | None:
        """Return the tombstone beside the place of a tenant's file, if there is one. Raises TenantFileError."""
        stone = tombstone_path(path)
        try:
            return msgspec.json.decode(stone.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as exc:
            hint = "remove it, if the tenant may come again"
            raise TenantFileError(
                f"the tombstone {stone} cannot be read: {exc}", hint=hint, path=str(stone)
            ) from exc

    def write(self, path: Path) -> None:
        """Put it beside the place of a tenant's file; durable on return."""
        stone = tombstone_path(path)
        temporary = stone.with_name(f".new-{stone.stem}-{SUFFIX[1:]}")  # cleared with other leftovers
        descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(self) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(stone)

    @staticmethod
    def remove(path: Path) -> None:
        """Let a tenant come again."""
        tombstone_path(path).unlink(missing_ok=True)


def tombstone_path(path: Path) -> Path:
    """Return where the tombstone of a tenant's file is: `acme.deleted` for `acme.db`."""
    return path.with_suffix(SUFFIX)


def tombstones_in(shard: Path, names: Iterable[str]) -> Iterator[Tombstone]:
    """Yield the tombstones in a shard, with its names; one beside a tenant's file counts for nothing."""
    known = set(names)
    for name in sorted(known):
        path = (shard / name).with_suffix(".db")
        if name.endswith(SUFFIX) and not name.startswith(".") and path.name not in known:
            stone = Tombstone.read(path)
            if stone is not None:
                yield stone


def moment(now_ns: int) -> str:
    """Return a time as tombstones have it."""
    return datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).isoformat().replace("+00:00", "Z")


def reached(_step: str) -> None:
    """Called at the named steps of a deletion and a move, for tests that end the process there."""
