"""What a store's open tenants may take of their process: descriptors, memory for caches, disk for -wal files.

Each has one budget for all of them. Memory and disk are shared out evenly, anew whenever the number of open
tenants has doubled or fallen to a quarter: one that was opened first has no more than one that came last. Of
descriptors a tenant takes three. Another part of the application may have taken the rest: then fewer tenants are
open for a while.
"""

from __future__ import annotations

import os

import msgspec

from tenantq.clock import Clock
from tenantq.config import DESCRIPTORS_PER_TENANT, StoreConfig

__all__ = ["Budget", "Share", "is_out_of_descriptors"]

CACHE_KIB = 262_144
"""The documents' cache_size of 256 MiB: the most that one tenant's page cache may grow to."""

MIN_CACHE_KIB = 256

WAL_PAGES = 10_000
"""The documents' wal_autocheckpoint: the most pages that one tenant's -wal may hold before it is checkpointed."""

MIN_WAL_PAGES = 250
"""A checkpoint costs two syncs: one for every few commits would make them slow."""

PAGE_BYTES = 4096

RAISE_SECONDS = 10.0
"""After so long without a shortage of descriptors a few more tenants may be open again."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one open tenant may take."""

    cache_kib: int
    wal_pages: int


class Budget:
    """The budgets of one store in this process. Its owner holds a lock."""

    def __init__(self, config: StoreConfig, clock: Clock) -> None:
        self._config = config
        self._monotonic = clock.monotonic
        self._most = self._limit = config.open_limit()
        self._raise_at = 0.0
        self._level = 1
        self.share = self._share_of(1)
        """What each open tenant may take now."""

    def limit(self) -> int:
        """Return how many tenants may be open now."""
        if self._limit < self._most and self._monotonic() >= self._raise_at:
            self._limit = min(self._most, self._limit + self._limit // 4 + 1)
            self._raise_at = self._monotonic() + RAISE_SECONDS
        return self._limit

    def lower(self, open_tenants: int) -> None:
        """Let fewer be open than there are: there is no descriptor for one more."""
        self._limit = max(1, min(self._limit, open_tenants * 3 // 4))
        self._raise_at = self._monotonic() + RAISE_SECONDS

    def is_shared_anew(self, open_tenants: int) -> bool:
        """Share out among so many; tell whether `share` is another one by that."""
        if self._level // 4 < open_tenants <= self._level:
            return False
        self._level = 1 << max(0, open_tenants - 1).bit_length()
        before, self.share = self.share, self._share_of(self._level)
        return self.share != before

    def _share_of(self, tenants: int) -> Share:
        cache_kib = self._config.max_cache_bytes // 1024 // tenants
        wal_pages = self._config.max_wal_bytes // PAGE_BYTES // tenants
        return Share(
            cache_kib=max(MIN_CACHE_KIB, min(CACHE_KIB, cache_kib)),
            wal_pages=max(MIN_WAL_PAGES, min(WAL_PAGES, wal_pages)),
        )


def is_out_of_descriptors() -> bool:
    """Tell whether this process cannot open what a tenant needs, whatever SQLite says of the reason."""
    taken: list[int] = []
    try:
        while len(taken) < DESCRIPTORS_PER_TENANT + 1:  # and the folder's while a file is made
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return True
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return False
