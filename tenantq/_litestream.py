"""The Litestream that replicates a store's tenants: where it listens, how it is asked, and how it lets go of one.

`tenantq litestream run` (in `tenantq_tools`) starts it. Here is only what the store itself needs: whoever deletes
or replaces a tenant's file must have Litestream close it first. It would go on with the old file, stop without an
error, and hold the tenant open.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import msgspec

from tenantq.errors import TenantInUse, TenantqError

__all__ = [
    "DIRECTORY",
    "LitestreamGone",
    "LitestreamSilent",
    "Running",
    "ask",
    "listed",
    "meta_directory",
    "release",
]

DIRECTORY = ".litestream"
"""In a store: what belongs to its replication."""

RUNNING_FILE = "running.json"
"""In DIRECTORY: the Running that was started last."""

RELEASE_TIMEOUT = 5
"""Seconds that Litestream may take to send the last changes of a tenant before it lets go without."""

MARGIN = 5.0
"""Seconds beyond a request's own timeout until Litestream counts as silent."""

_NOT_FOUND = 404


class LitestreamSilent(TenantqError):
    """Litestream is there and does not answer on its control socket."""

    default_hint = "look at the log of `tenantq litestream run`, or stop it"


class LitestreamGone(LitestreamSilent):
    """No Litestream listens on the control socket."""

    default_hint = "start `tenantq litestream run`"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Litestream of a store is to be asked, and under which paths it knows the files."""

    socket: str
    root: str
    """The store, as the process saw it that started Litestream: another one may see it by another path."""
    pid: int = 0
    """Of Litestream."""
    started: str = ""
    """When it started, as the kernel says: the pid may be another's by now."""

    @classmethod
    def read(cls, root: Path) -> Running | None:
        """Return what was started last on a store; None where nothing was, or it was stopped."""
        try:
            return msgspec.json.decode((root / DIRECTORY / RUNNING_FILE).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None

    def path_of(self, path: Path) -> str:
        """Return the path under which Litestream knows a tenant's file."""
        return str(Path(self.root, path.parent.name, path.name))


def ask(
    socket_path: str,
    request: str,
    body: dict[str, object] | None = None,
    *,
    timeout: float = 0.0,
) -> tuple[int, dict[str, object]]:
    """Send a request such as `GET /list`; return its status and document. Raises LitestreamGone, LitestreamSilent.

    timeout: seconds that the work itself may take.
    """
    data = b"" if body is None else msgspec.json.encode(body)
    head = f"{request} HTTP/1.0\r\nHost: litestream\r\nContent-Length: {len(data)}\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout + MARGIN)
            connection.connect(socket_path)
            connection.sendall(head.encode() + data)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except (ConnectionRefusedError, FileNotFoundError) as exc:
        raise LitestreamGone(f"no Litestream listens on {socket_path}", path=socket_path) from exc
    except OSError as exc:
        raise LitestreamSilent(f"Litestream does not answer on {socket_path}: {exc}", path=socket_path) from exc
    head_lines, _, content = answer.partition(b"\r\n\r\n")
    try:
        status = int(head_lines.split()[1])
    except (IndexError, ValueError):
        raise LitestreamSilent(f"Litestream broke off its answer on {socket_path}", path=socket_path) from None
    try:
        return status, msgspec.json.decode(content, type=dict[str, object])
    except msgspec.MsgspecError:
        return status, {"error": content.decode(errors="replace").strip()}


def listed(socket_path: str) -> set[str]:
    """Return the paths of the files that Litestream has open. Raises as `ask` does."""
    _status, document = ask(socket_path, "GET /list")
    databases = document.get("databases")
    if not isinstance(databases, list):
        raise LitestreamSilent(f"Litestream does not say what it has open: {document}", path=socket_path)
    return {database["path"] for database in databases}


def release(root: Path, path: Path, tenant_id: str) -> bool:
    """Let the store's Litestream close a tenant's file and forget how far it was; False if it had it not open.

    To be called before the file is deleted or replaced, with the lock of its shard held: nobody registers the file
    again until that lock is let go. What was committed last is replicated first, if the replica answers within
    RELEASE_TIMEOUT. Raises TenantInUse if Litestream is there and does not let go.
    """
    running = Running.read(root)
    was_open = False
    if running is not None:
        try:
            was_open = _unregister(running.socket, running.path_of(path))
        except LitestreamGone:
            pass
        except LitestreamSilent as exc:
            raise TenantInUse(
                f"Litestream has tenant {tenant_id!r} open and does not let go: {exc.message}",
                tenant=tenant_id,
                path=str(path),
                hint="stop `tenantq litestream run`, then try again",
            ) from exc
    # What it keeps beside the file says how far the old file was replicated, and is not true of the next one.
    shutil.rmtree(meta_directory(path), ignore_errors=True)
    return was_open


def meta_directory(path: Path) -> Path:
    """Return where Litestream keeps how far a tenant's file is replicated."""
    return path.with_name(f".{path.name}-litestream")


def _unregister(socket_path: str, path: str) -> bool:
    body: dict[str, object] = {"path": path, "timeout": RELEASE_TIMEOUT}
    status, document = ask(socket_path, "POST /unregister", body, timeout=RELEASE_TIMEOUT)
    if status == _NOT_FOUND or document.get("status") == "already_unregistered":
        return False
    # It closes the file even where it reports that the last changes could not be sent.
    if "error" in document and path in listed(socket_path):
        raise LitestreamSilent(str(document["error"]), path=path)
    return True
