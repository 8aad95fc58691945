"""Names: which ids and names are taken, and which file a tenant's id leads to.

A tenant's file lies in one of 256 shard directories (by the id's hash). A readable id names its file
(`acme.db`). Any other id is spelled in base32 behind a readable stem (`acme-corp.85gmm....db`), so that a
listing never has to open a file, ids that differ only in case or normal form never share one on any file
system, and no id can leave the directory. An id too long for a file name is named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from functools import lru_cache

from tenantq.errors import InvalidName, InvalidTenantId

__all__ = ["check_name", "check_tenant_id", "file_name", "shard_name", "tenant_id_of"]

MAX_LENGTH = 128
"""Characters in an id or a name."""

SUFFIX = ".db"
_READABLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_RESERVED = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")  # no file name on Windows
_SHARD = re.compile(r"[0-9a-f]{2}")
_SPELLED_BYTES = 130
"""UTF-8 bytes of an id that base32 can spell within 255 bytes, beside stem, suffixes and sidecars."""
_HASHED = "~"
_KEY_BYTES = 8


def check_tenant_id(tenant_id: str) -> str:
    """Return the id, or raise InvalidTenantId."""
    problem = _problem(tenant_id)
    if problem:
        raise InvalidTenantId(f"tenant id {_shown(tenant_id)} {problem}")
    return tenant_id


def check_name(name: str, what: str = "queue name") -> str:
    """Return the name of a queue, topic, key or worker, or raise InvalidName."""
    return _checked_name(name, what) if isinstance(name, str) else _check_name(name, what)


def _check_name(name: str, what: str) -> str:
    problem = _problem(name)
    if problem:
        raise InvalidName(f"{what} {_shown(name)} {problem}")
    return name


_checked_name = lru_cache(maxsize=4096)(_check_name)
"""Each verb checks its queue's name: one that was good is not looked at again."""


def key_of(tenant_id: str) -> int:
    """Return a number of 64 bits for a tenant, the first of its id's hash."""
    return int.from_bytes(hashlib.sha256(tenant_id.encode()).digest()[:_KEY_BYTES], "big")


def key_of_file(name: str) -> int | None:
    """Return the key of the tenant that a file name belongs to, a hashed one too; None if it is not a tenant's."""
    tenant_id = tenant_id_of(name)
    if tenant_id is not None:
        return key_of(tenant_id)
    try:
        digest = _bytes_of(name.removesuffix(SUFFIX).partition(f".{_HASHED}")[2]) if is_hashed(name) else b""
    except ValueError:
        return None
    return int.from_bytes(digest[:_KEY_BYTES], "big") if len(digest) == hashlib.sha256().digest_size else None


def shard_name(tenant_id: str) -> str:
    """Return the shard directory of a tenant: the first two hex digits of its id's hash."""
    return f"{key_of(tenant_id) >> 56:02x}"


def file_name(tenant_id: str) -> str:
    """Return the name of a tenant's file."""
    if _READABLE.fullmatch(tenant_id) and not _RESERVED.fullmatch(tenant_id):
        return tenant_id + SUFFIX
    stem = re.sub(r"[^a-z0-9]+", "-", tenant_id.lower()).strip("-")[:20] or "x"
    encoded = tenant_id.encode()
    if len(encoded) <= _SPELLED_BYTES:
        return f"{stem}.{_base32(encoded)}{SUFFIX}"
    return f"{stem}.{_HASHED}{_base32(hashlib.sha256(encoded).digest())}{SUFFIX}"


def tenant_id_of(name: str) -> str | None:
    """Return the id that a file name spells; None for a hashed one or a name that is not a tenant's."""
    stem, dot, spelled = name.removesuffix(SUFFIX).partition(".")
    if not name.endswith(SUFFIX) or not stem:
        return None
    if not dot:
        return stem if file_name(stem) == name else None
    try:
        tenant_id = _bytes_of(spelled).decode()
    except ValueError:
        return None
    return tenant_id if not _problem(tenant_id) and file_name(tenant_id) == name else None


def is_hashed(name: str) -> bool:
    """Tell whether a file name has only the hash of its tenant's id."""
    return name.endswith(SUFFIX) and f".{_HASHED}" in name


def is_shard(name: str) -> bool:
    """Tell whether a directory's name is that of a shard."""
    return _SHARD.fullmatch(name) is not None


def _base32(data: bytes) -> str:
    return base64.b32hexencode(data).decode().rstrip("=").lower()


def _bytes_of(spelled: str) -> bytes:
    """Undo `_base32`; raises ValueError."""
    return base64.b32hexdecode(spelled.upper() + "=" * (-len(spelled) % 8))


def _problem(name: object) -> str:
    if not isinstance(name, str):
        return f"is a {type(name).__name__}, not a str"
    if not name:
        return "is empty"
    if len(name) > MAX_LENGTH:
        return f"has {len(name)} characters, more than {MAX_LENGTH}"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        return "has a control character or a lone surrogate"
    return ""


def _shown(name: object) -> str:
    text = ascii(name)
    return text if len(text) <= 80 else text[:77] + "..."
