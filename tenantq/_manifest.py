"""What a backup directory holds: one file that says it, and a log of what a run has added to it so far.

`manifest.json` is replaced in one step at the end of a run. Until then each finished copy is a line of
`run.jsonl`, written when the copy has its name: who reads takes both together, and a run that was killed at any
point goes on from there. What such a run left without a line, or was removing, is cleared by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from datetime import datetime
from pathlib import Path

import msgspec

from tenantq import _schema, naming
from tenantq.errors import TenantFileError

__all__ = [
    "GENERATION",
    "LOG",
    "MANIFEST",
    "Backup",
    "Entry",
    "Generation",
    "Log",
    "Manifest",
    "Note",
    "digest_of",
    "generation_name",
    "load",
    "place_of",
    "save",
]

MANIFEST = "manifest.json"
LOG = "run.jsonl"

GENERATION = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
"""The name of a generation: when it was taken, in UTC."""

VERSION = 1
"""Of the form. A newer one is refused."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of one tenant."""

    name: str
    """Its file in the tenant's directory, without `.db`: when it was taken, in UTC."""
    taken_at: datetime
    bytes: int
    sha256: str


class Entry(msgspec.Struct, kw_only=True):
    """What is kept of one tenant."""

    directory: str
    """Where its generations lie, such as `82/acme`."""
    look: list[int] | None = None
    """How the tenant's file looked before the newest generation was taken; None: it has to be looked into."""
    deleted_at: datetime | None = None
    """When a run first found the tenant gone."""
    generations: list[Generation] = []
    """From old to new."""


class Manifest(msgspec.Struct, kw_only=True):
    """What a backup directory holds."""

    version: int = VERSION
    store: str = ""
    """The store whose tenants these are."""
    boot: str = ""
    """The boot of the host in which the files were looked at: a crash of it may take their times back."""
    finished_at: datetime | None = None
    """When the last run ended."""
    tenants: dict[str, Entry] = {}


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of one tenant, a whole file."""

    tenant: str
    generation: str
    """Its name: when it was taken, in UTC, such as `20261130T080000.000000Z`."""
    taken_at: datetime
    path: Path
    bytes: int
    sha256: str

    @classmethod
    def of(cls, directory: Path, tenant_id: str, entry: Entry, one: Generation) -> Backup:
        """Return a generation as its users see it."""
        return cls(
            tenant=tenant_id,
            generation=one.name,
            taken_at=one.taken_at,
            path=place_of(directory, entry, one.name),
            bytes=one.bytes,
            sha256=one.sha256,
        )

    def is_whole(self) -> bool:
        """Tell whether the file is there with each of its bytes as it was taken. It is read to the end."""
        try:
            return digest_of(self.path) == self.sha256
        except OSError:
            return False


class Note(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the log: the run's first (`started`), a tenant's, or the copies that are being removed."""

    started: str = ""
    """The name that a copy of this moment would have: what has no line and is not older is of this run."""
    store: str = ""
    boot: str = ""
    tenant: str = ""
    directory: str = ""
    look: list[int] | None = None
    generation: Generation | None = None
    removing: list[str] = []

    def apply(self, manifest: Manifest) -> None:
        """Bring a manifest up to what happened."""
        if self.started:
            manifest.store = self.store
            if self.boot != manifest.boot:
                manifest.boot = self.boot
                for entry in manifest.tenants.values():
                    entry.look = None
        elif self.tenant:
            entry = manifest.tenants.setdefault(self.tenant, Entry(directory=self.directory))
            entry.look, entry.deleted_at = self.look, None
            latest = entry.generations[-1].name if entry.generations else ""
            if self.generation is not None and self.generation.name > latest:
                entry.generations = [*entry.generations, self.generation]


class Log:
    """The log of the run that is under way."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOG
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def add(self, note: Note) -> None:
        """Write a line. Threads may do so at once: a line is one write."""
        os.write(self._descriptor, msgspec.json.encode(note) + b"\n")

    def remove(self) -> None:
        """Remove it: all that it says is in the manifest, and all that it was to remove is gone."""
        self._path.unlink()

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def generation_name(taken_at: datetime) -> str:
    """Return the name of a copy that is taken at a moment."""
    return f"{taken_at:%Y%m%dT%H%M%S}.{taken_at.microsecond:06}Z"


def place_of(directory: Path, entry: Entry, name: str) -> Path:
    """Return where a generation lies."""
    return directory / entry.directory / f"{name}{naming.SUFFIX}"


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(directory: Path) -> tuple[Manifest, list[Note]]:
    """Return what a directory holds, and the log of a run that is under way or was cut short.

    Raises TenantFileError for a manifest that cannot be read.
    """
    path = directory / MANIFEST
    try:
        notes = _read_log(directory / LOG)  # first: a run that ends meanwhile has its lines in the manifest
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest) if path.exists() else Manifest()
    except (OSError, msgspec.MsgspecError) as exc:
        hint = "the copies beside it are whole files; move it away to begin a new one"
        raise TenantFileError(f"{path} cannot be read: {exc}", hint=hint, path=str(path)) from exc
    if manifest.version > VERSION:
        raise TenantFileError(f"{path} is of a newer tenantq", hint="upgrade tenantq", path=str(path))
    for note in notes:
        note.apply(manifest)
    return manifest, notes


def save(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest, at once and for good."""
    path = directory / MANIFEST
    written = path.with_name(f"{MANIFEST}.new")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
    _schema.sync_directory(directory)


def _read_log(path: Path) -> list[Note]:
    notes: list[Note] = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            try:
                notes.append(msgspec.json.decode(line, type=Note))
            except msgspec.MsgspecError:
                break  # a line that a crash cut short, and nothing behind it is to be believed
    return notes
