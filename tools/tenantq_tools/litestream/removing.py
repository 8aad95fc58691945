"""Removing what a replica has of a tenant, from a directory or an S3: Litestream itself removes nothing."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from tenantq import Store
from tenantq_tools.litestream.errors import InvalidReplica, ReplicaError
from tenantq_tools.litestream.settings import Settings

__all__ = ["remover"]


def remover(store: Store, settings: Settings, tenant_id: str) -> Callable[[str], list[str]]:
    """Return what removes a tenant's replica and returns the names of what that was, for `Store.delete`.

    Raises, before anything is deleted, InvalidReplica where the replica is neither a directory nor an S3, and
    ReplicaError where an S3 cannot be reached or boto3 is not installed. The function raises ReplicaError where
    something cannot be removed.
    """
    settings.check(store.root)
    url = settings.url_of(store.tenant(tenant_id).path)
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            directory = Path(unquote(parts.path))
            return lambda _tenant_id: _remove_directory(directory, url, tenant_id)
        case "s3":
            bucket = _bucket(parts, tenant_id)
            prefix = f"{unquote(parts.path).strip('/')}/"
            _removed_objects(bucket, prefix, tenant_id, only_look=True)
            return lambda _tenant_id: _removed_objects(bucket, prefix, tenant_id)
    raise InvalidReplica(
        f"the replica {url} is neither a directory nor an S3, and Litestream removes nothing",
        hint="delete without --replica, then remove what lies below that name by your provider's own tools",
        tenant=tenant_id,
    )


def _remove_directory(directory: Path, url: str, tenant_id: str) -> list[str]:
    if not directory.exists():
        return []
    try:
        shutil.rmtree(directory)
    except OSError as exc:
        raise ReplicaError(f"{directory} cannot be removed: {exc}", tenant=tenant_id) from exc
    return [url]


def _bucket(parts: SplitResult, tenant_id: str) -> Any:
    try:
        boto3, config = importlib.import_module("boto3"), importlib.import_module("botocore.config")
    except ImportError as exc:
        hint = "pip install 'tenantq[s3]', or delete without --replica and remove it by your provider's own tools"
        raise ReplicaError("boto3 is not installed", hint=hint, tenant=tenant_id) from exc
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    style = "path" if options.get("forcePathStyle") == "true" else "auto"
    resource = boto3.resource(
        "s3",
        endpoint_url=options.get("endpoint"),
        region_name=options.get("region"),
        config=config.Config(s3={"addressing_style": style}),
    )
    return resource.Bucket(parts.netloc)


def _removed_objects(bucket: Any, prefix: str, tenant_id: str, *, only_look: bool = False) -> list[str]:
    """Remove each object and each of its versions; return the names, one of an object."""
    errors = importlib.import_module("botocore.exceptions")
    try:
        found = bucket.objects.filter(Prefix=prefix)
        if only_look:
            list(found.limit(1))
            return []
        names = [f"s3://{bucket.name}/{one.key}" for one in found]
        answers = bucket.object_versions.filter(Prefix=prefix).delete()
        refused = [error for answer in answers for error in answer.get("Errors", ())]
    except (errors.BotoCoreError, errors.ClientError) as exc:
        raise ReplicaError(f"s3://{bucket.name}/{prefix}: {exc}", tenant=tenant_id) from exc
    if refused:
        key, why = refused[0].get("Key"), refused[0].get("Message")
        raise ReplicaError(f"{key} cannot be removed: {why}", tenant=tenant_id)
    return names
