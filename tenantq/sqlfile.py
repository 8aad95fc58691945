"""Load SQL statements from `.sql` files: each is headed `-- name: verb_noun` and runs under that name."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["compact", "load_statements"]

_HEADER = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")


def load_statements(package: str, file: str) -> dict[str, str]:
    """Return the statements of one SQL file of a package, by name.

    Each is one line without comments, as SQLite's cache of prepared statements compares their texts at every call;
    but for what makes a schema, whose comments a database keeps for its readers.
    """
    text = resources.files(package).joinpath("_sql", file).read_text(encoding="utf-8")
    pieces = _HEADER.split(text)
    statements = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return {name: body.strip() if "CREATE" in body else compact(body) for name, body in statements.items()}


def compact(sql: str) -> str:
    """Return SQL on one line, without comments."""
    return " ".join(_COMMENT.sub("", sql).split())
