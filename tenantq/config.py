"""What a store is opened with: one validated Struct. The library reads no environment."""

from __future__ import annotations

import resource

import msgspec

from tenantq._sqlite import Durability
from tenantq.arguments import check_limit, check_seconds
from tenantq.backoff import Backoff
from tenantq.errors import InvalidArgument

__all__ = ["StoreConfig"]

DESCRIPTORS_PER_TENANT = 3
"""The file, its -wal and its -shm."""

MAX_OPEN_TENANTS = 1_000

MAX_CACHE_BYTES = 2**30
"""1 GiB: four hot tenants with the documents' cache of 256 MiB each, or a thousand with one MiB."""

MAX_WAL_BYTES = 2**32
"""4 GiB: a hundred tenants with the documents' 40 MB each, or a thousand with 4 MB."""


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a store behaves. See `tenantq.open` for the meaning of each."""

    durability: Durability = Durability.NORMAL
    busy_timeout: float = 5.0
    """Seconds that a call waits for the write lock: the documents' busy_timeout of 5000 ms."""
    max_open_tenants: int = 0
    """0: as many as half of this process's file descriptors allow, MAX_OPEN_TENANTS at most."""
    max_cache_bytes: int = MAX_CACHE_BYTES
    """What the page caches of all open tenants may come to."""
    max_wal_bytes: int = MAX_WAL_BYTES
    """What their -wal files may come to before they are checkpointed."""
    max_depth: int | None = None
    """Messages that each queue of a tenant may hold which has no bound of its own."""
    memory_depth: int = 10_000
    """Messages that the memory layer holds before it refuses more."""
    max_outbox: int | None = None
    """Events of one tenant that may wait for Postgres before `emit` refuses more; None: any number."""
    checksums: bool = False
    """Whether messages and events are written with a checksum."""
    backoff: Backoff = Backoff()
    migrate: bool = True
    """Whether a file of an older schema is migrated when it is opened, or refused."""

    def __post_init__(self) -> None:
        check_seconds(self.busy_timeout, "busy_timeout")
        if self.max_open_tenants < 0:
            raise InvalidArgument(f"max_open_tenants {self.max_open_tenants} is negative")
        check_limit(self.max_cache_bytes, "max_cache_bytes")
        check_limit(self.max_wal_bytes, "max_wal_bytes")
        if self.max_depth is not None:
            check_limit(self.max_depth, "max_depth")
        if self.memory_depth < 1:
            raise InvalidArgument(f"memory_depth {self.memory_depth} is not a whole number from 1")
        if self.max_outbox is not None:
            check_limit(self.max_outbox, "max_outbox")

    @classmethod
    def of(cls, *, durability: str, **options: object) -> StoreConfig:
        """Return the configuration, or raise InvalidArgument that says what is wrong."""
        try:
            known = Durability(durability)
        except ValueError:
            choices = " or ".join(repr(choice.value) for choice in Durability)
            raise InvalidArgument(f"durability {durability!r} is not {choices}") from None
        return cls(durability=known, **options)  # type: ignore[arg-type]

    def open_limit(self) -> int:
        """Return how many tenants may be open at once."""
        if self.max_open_tenants:
            return self.max_open_tenants
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return MAX_OPEN_TENANTS
        return max(4, min(MAX_OPEN_TENANTS, soft // 2 // DESCRIPTORS_PER_TENANT))
