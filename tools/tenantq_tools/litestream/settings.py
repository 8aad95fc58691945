"""What the replication of a store is told: where the replica is, how many tenants at once, what is kept."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import msgspec

from tenantq._litestream import DIRECTORY
from tenantq.errors import TenantFileError
from tenantq_tools.litestream.errors import BudgetTooSmall, InvalidReplica, NotConfigured

__all__ = ["CONFIG_FILE", "DEFAULT_HOT", "Settings", "config_text", "directory_of"]

DEFAULT_HOT = 200
"""Tenants: 100 MB, and 15 % of one core until those that rest are let go, measured."""

DESCRIPTORS = 6
"""That Litestream has open for each tenant."""

SPARE_DESCRIPTORS = 64
"""For the socket, the replica's connections, and tenants that `tenantq litestream sync` registers besides."""

SETTINGS_FILE = "settings.json"

CONFIG_FILE = "litestream.yml"

LEVELS = "[{interval: 30s}, {interval: 1h}]"
"""How often changes are merged. A tenant is let go no sooner than its last ones are, or they would never be."""

SCHEMES = ("file", "s3", "gs", "abs", "sftp", "nats", "oss", "webdav", "webdavs")
"""Those of Litestream's replica URLs."""

_UNSAFE = set("?#%")
"""In a path, Litestream takes them for parts of a URL, and opens other files."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is replicated. Kept in the store, without credentials: those are in the environment."""

    replica: str = ""
    """The URL below which each tenant has a directory, such as s3://bucket/tenants?region=eu-central-1."""
    hot: int = DEFAULT_HOT
    """Tenants that Litestream has open at once."""
    idle: float = 60.0
    """Seconds without a change after which a tenant is let go."""
    snapshot_hours: int = 24
    """How often a tenant that changes gets a new snapshot, behind which older changes can be removed."""
    retention_hours: int = 72
    """How long old snapshots, and with them the times to restore to, are kept."""

    @classmethod
    def load(cls, root: Path, **changes: object) -> Settings:
        """Return what a store keeps, with what is given besides. Raises InvalidReplica."""
        kept: dict[str, object] = {}
        try:
            kept = msgspec.json.decode((root / DIRECTORY / SETTINGS_FILE).read_bytes(), type=dict[str, object])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as exc:
            path = str(root / DIRECTORY / SETTINGS_FILE)
            raise TenantFileError(f"{path} cannot be read: {exc}", path=path, hint="delete it") from exc
        kept |= {name: value for name, value in changes.items() if value is not None}
        settings = msgspec.convert(kept, type=cls)
        if settings.replica:
            check_replica(settings.replica)
        return settings

    def keep(self, root: Path) -> None:
        """Keep them in the store, and beside them the configuration that Litestream is started with."""
        directory = directory_of(root)
        write_text(directory / SETTINGS_FILE, msgspec.json.format(msgspec.json.encode(self).decode()) + "\n")

    def check(self, root: Path) -> None:
        """Raise NotConfigured, InvalidReplica or BudgetTooSmall if nothing can be replicated with them."""
        if not self.replica:
            raise NotConfigured
        if _UNSAFE & set(str(root)):
            raise InvalidReplica(
                f"Litestream cannot open files below {root}: the path has one of {' '.join(sorted(_UNSAFE))}",
                hint="move the store, or open it through another path",
                path=str(root),
            )
        _soft, hard = resource.getrlimit(
            resource.RLIMIT_NOFILE
        )  # a program in Go raises its soft limit to the hard
        needed = self.hot * DESCRIPTORS + SPARE_DESCRIPTORS
        if hard not in (resource.RLIM_INFINITY, -1) and needed > hard:
            raise BudgetTooSmall(
                f"{self.hot} tenants at once need {needed} open files, and a process may have {hard}",
                hint=f"give --hot {max(1, (hard - SPARE_DESCRIPTORS) // DESCRIPTORS)}, or raise `ulimit -Hn`",
            )

    def url_of(self, path: Path) -> str:
        """Return the URL of one tenant's replica: its file's shard and name, below that of the store."""
        parts = urlsplit(self.replica)
        tail = f"{parts.path.rstrip('/')}/{path.parent.name}/{path.name}"
        return urlunsplit((parts.scheme, parts.netloc, tail, parts.query, ""))


def check_replica(url: str) -> None:
    """Raise InvalidReplica if a URL is none that Litestream takes, or has a secret in it."""
    try:
        parts = urlsplit(url)
        has_secret = bool(parts.password)
    except ValueError as exc:
        raise InvalidReplica(f"the replica {url!r} is no URL: {exc}") from exc
    if parts.scheme not in SCHEMES:
        raise InvalidReplica(
            f"the replica {url!r} begins with none of {', '.join(SCHEMES)}",
            hint="such as file:///backup/tenants, or s3://bucket/tenants?region=eu-central-1",
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/") or set(parts.path) & {"%", " "}):
        raise InvalidReplica(
            f"the replica {url!r} is no absolute path of plain characters",
            hint="such as file:///backup/tenants: three slashes, no spaces",
        )
    if parts.scheme != "file" and not parts.netloc:
        raise InvalidReplica(f"the replica {url!r} names no bucket or host")
    if not url.isascii() or "#" in url:
        raise InvalidReplica(f"the replica {url!r} has characters that Litestream does not find again")
    if has_secret or any(
        "secret" in name.lower() or "password" in name.lower() for name, _ in parse_qsl(parts.query)
    ):
        shown = urlunsplit((parts.scheme, parts.hostname or "", quote(parts.path), "", ""))
        raise InvalidReplica(
            f"the replica {shown} has a secret in its URL, where every listing shows it",
            hint="give credentials in the environment, such as AWS_SECRET_ACCESS_KEY",
        )


def config_text(settings: Settings, socket_path: str) -> str:
    """Return the configuration for a Litestream that is told its files by the control socket.

    It asks the replica some times a minute for each file that it has; one that rests it has not.
    """
    return f"""\
# Written by `tenantq litestream run` at each start. The tenants are registered by the control socket.
socket:
  enabled: true
  path: {msgspec.json.encode(socket_path).decode()}
  permissions: 0600
logging: {{level: info, type: json}}
l0-retention: 1h
l0-retention-check-interval: 30s
levels: {LEVELS}
snapshot: {{interval: {settings.snapshot_hours}h, retention: {settings.retention_hours}h}}
shutdown-sync-timeout: 5s
dbs: []
"""


def config_of_one(settings: Settings, registered: str, url: str) -> str:
    """Return the configuration for a run over one file, which ends when it is replicated."""
    quoted, at = (msgspec.json.encode(text).decode() for text in (registered, url))
    return f"""\
logging: {{level: info, type: json}}
levels: {LEVELS}
snapshot: {{interval: {settings.snapshot_hours}h, retention: {settings.retention_hours}h}}
dbs:
  - path: {quoted}
    replica: {{url: {at}}}
"""


def directory_of(root: Path) -> Path:
    """Return the directory of a store's replication; it is made, for this user alone."""
    directory = root / DIRECTORY
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise TenantFileError(f"{directory} cannot be made: {exc}", path=str(directory)) from exc
    return directory


def write_text(path: Path, text: str) -> None:
    """Put a file in place at once, for this user alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as exc:
        raise TenantFileError(f"{path} cannot be written: {exc}", path=str(path)) from exc
