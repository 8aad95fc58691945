"""Removing what a replica has of a tenant: of a directory. Litestream itself removes nothing from anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tenantq import Store
from tenantq_tools.litestream.errors import InvalidReplica, ReplicaError
from tenantq_tools.litestream.settings import Settings

__all__ = ["remover"]


def remover(store: Store, settings: Settings, tenant_id: str) -> Callable[[str], list[str]]:
    """Return what removes a tenant's replica and returns its URL, for `Store.delete`.

    Raises InvalidReplica, before anything is deleted, where the replica is not a directory. The function raises
    ReplicaError where the directory cannot be removed.
    """
    settings.check(store.root)
    url = settings.url_of(store.tenant(tenant_id).path)
    if urlsplit(url).scheme != "file":
        raise InvalidReplica(
            f"the replica of tenant {tenant_id!r} is not a directory, and Litestream removes nothing: {url}",
            hint="delete without --replica, then remove what lies below that name by your provider's own tools",
            tenant=tenant_id,
        )
    directory = Path(unquote(urlsplit(url).path))

    def remove(_tenant_id: str) -> list[str]:
        if not directory.exists():
            return []
        try:
            shutil.rmtree(directory)
        except OSError as exc:
            raise ReplicaError(f"{directory} cannot be removed: {exc}", tenant=tenant_id) from exc
        return [url]

    return remove
