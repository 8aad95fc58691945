"""How a new tenant's file is made: one write of a database built in memory, seen by nobody until it is whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from tenantq import _schema
from tenantq._sqlite import Image
from tenantq.errors import DiskFull, TenantFileError

__all__ = ["clear_leftovers", "create_file", "temporary_file"]

TEMPORARY_PREFIX = ".new-"

LEFTOVER_SECONDS = 3600.0
"""A temporary file that nobody has written to for so long is cleared, unless its maker holds its lock."""

_NAMELESS = getattr(os, "O_TMPFILE", 0)
"""A file without a name leaves nothing behind when its maker is killed. Not every system has them."""

_sync_data = getattr(os, "fdatasync", os.fsync)


class _Template:
    """An empty tenant's file in memory, one for the process: the schema is compiled once, not for every tenant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._image: Image | None = None

    def of(self, tenant_id: str) -> bytearray:
        """Return the bytes of a new file for a tenant."""
        with self._lock:
            if self._image is None:
                image = Image()
                _schema.write_schema(image, tenant_id)
                self._image = image
            _schema.write_meta(self._image, "tenant_id", tenant_id)
            _schema.write_meta(self._image, "file_id", str(uuid.uuid4()))
            return self._image.to_bytes()

    def after_fork(self) -> None:
        """Begin anew in a child: the parent's lock may have been held."""
        self._lock = threading.Lock()
        self._image = None


_template = _Template()
os.register_at_fork(after_in_child=_template.after_fork)


def create_file(path: Path, tenant_id: str, *, survives_power_loss: bool) -> None:
    """Make a tenant's file, whole or not at all; another process may do the same at the same time.

    The first one's gets the name. After power loss the file is sound, or it is not there: with
    `survives_power_loss` it is there.
    """
    image = _template.of(tenant_id)
    try:
        try:
            _write_nameless(path, image)
        except FileExistsError:
            pass
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
                raise
            # No such files on this system or file system, or no /proc to give one a name by.
            _write_named(path, image)
        if survives_power_loss:
            _schema.sync_directory(path.parent)
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        message = f"no space is left for {path}" if full else f"{path}: {exc}"
        raise (DiskFull if full else TenantFileError)(message, tenant=tenant_id, path=str(path)) from exc


def _write_nameless(path: Path, image: bytearray) -> None:
    if not _NAMELESS:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    descriptor = os.open(path.parent, _NAMELESS | os.O_WRONLY, 0o600)
    try:
        _write_all(descriptor, image)
        # A folder's descriptor is asked for: without one, Python calls link(2), which does not follow the name.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    finally:
        os.close(descriptor)


def _write_named(path: Path, image: bytearray) -> None:
    with temporary_file(path.parent) as temporary:
        _write_all(temporary.descriptor, image)
        temporary.close()
        with contextlib.suppress(FileExistsError):
            os.link(temporary.path, path)


def _write_all(descriptor: int, data: bytearray) -> None:
    written = os.write(descriptor, data)
    while written < len(data):  # a disk that is nearly full takes a part
        written += os.write(descriptor, data[written:])
    # Before it has a name: a file whose name is on the disk must not wait there for its content.
    _sync_data(descriptor)


class Temporary:
    """A new, empty file that is no tenant's."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        self.descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        """Holds the lock that keeps others from clearing it."""

    def close(self) -> None:
        """Close the descriptor, before SQLite opens the file or another name leads to it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextlib.contextmanager
def temporary_file(directory: Path) -> Iterator[Temporary]:
    """Give a new, empty file that is no tenant's; it is removed when the block ends."""
    temporary = Temporary(directory)
    try:
        fcntl.flock(temporary.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary
    finally:
        temporary.path.unlink(missing_ok=True)
        _schema.remove_sidecars(temporary.path)
        temporary.close()


def clear_leftovers(directory: Path, names: Iterable[str]) -> None:
    """Remove, of the names in a shard, temporary files of processes that were killed. Raises nothing."""
    for name in names:
        if name.startswith(TEMPORARY_PREFIX):
            with contextlib.suppress(OSError):
                _clear(directory / name)


def _clear(path: Path) -> None:
    if time.time() - path.stat().st_mtime < LEFTOVER_SECONDS:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by a maker that is alive
        path.unlink()
    finally:
        os.close(descriptor)
