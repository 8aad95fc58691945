"""Load SQL statements from `.sql` files: each is headed `-- name: verb_noun` and runs under that name."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["load_statements"]

_HEADER = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(package: str, file: str) -> dict[str, str]:
    """Return the statements of one SQL file of a package, by name."""
    text = resources.files(package).joinpath("_sql", file).read_text(encoding="utf-8")
    pieces = _HEADER.split(text)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
