"""Payloads as they are kept: JSON text, so that `sqlite3` and `psql` show them, or bytes as they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from tenantq.errors import PayloadError, PayloadTooLarge, UndecodablePayload

__all__ = ["decode_payload", "encode_payload"]

MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""What one payload may hold. SQLite would take 1 GB and Postgres less; both get slow far below that."""

type_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_BYTES = (bytes, bytearray, memoryview)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_payload(value: object) -> str | bytes:
    """Return what is stored for a payload: JSON text, or the bytes themselves.

    Raises PayloadError for what JSON cannot hold without losing it (NaN, infinities, lone surrogates,
    types that msgspec does not know), PayloadTooLarge over MAX_PAYLOAD_BYTES.
    """
    if isinstance(value, _BYTES):
        data = bytes(value)
        if len(data) > MAX_PAYLOAD_BYTES:
            raise _too_large(len(data))
        return data
    try:
        data = _encode(value)
        if len(data) > MAX_PAYLOAD_BYTES:  # before it is looked through, and copied once more
            raise _too_large(len(data))
        # msgspec writes NaN and the infinities as null, which would come back as None.
        if b"null" in data and _has_non_finite(msgspec.to_builtins(value)):
            raise PayloadError("a payload holds NaN or an infinity, which JSON cannot hold")
        text = data.decode()
    except PayloadError:
        raise
    except RecursionError as exc:
        raise PayloadError("a payload is nested too deeply or holds itself") from exc
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as exc:
        raise PayloadError(f"a payload of type {type(value).__name__} cannot be encoded: {exc}") from exc
    return text


def decode_payload(body: str | bytes, payload_type: Any = None) -> Any:
    """Return the payload of a stored body, as payload_type where one is given.

    Raises UndecodablePayload.
    """
    if isinstance(body, bytes) and payload_type in (None, bytes):
        return body
    try:
        decode = _decode if payload_type is None else _decoder_of(payload_type)
        return decode(body)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as exc:
        name = getattr(payload_type, "__name__", "JSON")
        raise UndecodablePayload(f"a stored payload does not decode as {name}: {exc}") from exc


def _decoder_of(payload_type: Any) -> Callable[[str | bytes], Any]:
    decoder = type_decoders.get(payload_type)
    if decoder is None:  # raises TypeError for a class that msgspec does not know
        decoder = type_decoders[payload_type] = msgspec.json.Decoder(payload_type)
    return decoder.decode


def _too_large(size: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"a payload of {size} bytes is over the limit of {MAX_PAYLOAD_BYTES}")


def _has_non_finite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_non_finite(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_non_finite(item) for item in value)
    return False
