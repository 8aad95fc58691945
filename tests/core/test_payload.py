from __future__ import annotations

import dataclasses
import enum
import math
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tenantq import payload
from tenantq.errors import PayloadError, PayloadTooLarge, UndecodablePayload
from tenantq.payload import decode_payload, encode_payload


class Inner(msgspec.Struct):
    value: float | None = None


class Outer(msgspec.Struct):
    inner: Inner
    many: list[Inner] = []


@dataclasses.dataclass
class Point:
    x: float


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**53 + 1, 2**63, 2**64 - 1, 2**70, -(2**70), 0.1, -0.0, 1e308, 5e-324, "",
        "null", "\0", "\u2028\U0010ffff", "naïve ☕", [], [[]], {}, {"": {"a": [1, None, "NaN"]}}, "a" * 100_000,
        {"null": math.pi},
    ],
)  # fmt: skip
def test_json_comes_back_equal(value: Any) -> None:
    body = encode_payload(value)
    assert isinstance(body, str)
    assert decode_payload(body) == value
    assert repr(decode_payload(body)) == repr(value)


@pytest.mark.parametrize("value", [b"", b"\x00\xff", b"null", bytearray(b"ab"), memoryview(b"abcd")[::2]])
def test_bytes_are_kept_as_they_are(value: Any) -> None:
    body = encode_payload(value)
    assert body == bytes(value)
    assert decode_payload(body) == bytes(value)
    assert decode_payload(body, bytes) == bytes(value)


@pytest.mark.parametrize(
    "value",
    [
        Outer(inner=Inner(1.5), many=[Inner(), Inner(2)]),
        Point(1.5),
        Colour.RED,
        uuid.UUID(int=7),
        datetime(2026, 11, 30, tzinfo=UTC),
        date(2026, 11, 30),
        Decimal("1.10"),
        (1, 2),
        frozenset({1}),
    ],
)
def test_a_typed_payload_comes_back_as_its_type(value: Any) -> None:
    decoded = decode_payload(encode_payload(value), type(value))
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: {"a": {"b": [0, x]}},
        Inner,
        lambda x: Outer(inner=Inner(), many=[Inner(x)]),
        Point,
        lambda x: (1, x),
        lambda x: {x} if math.isnan(x) else frozenset({x}),
        lambda x: {"null": None, "x": Point(x)},
    ],
)
def test_a_number_that_json_cannot_hold_is_refused_wherever_it_is(number: float, wrap: Any) -> None:
    with pytest.raises(PayloadError, match="NaN or an infinity"):
        encode_payload(wrap(number))


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "value",
    [object(), {1j: 1}, 1j, lambda: None, "\ud800", {"\udfff": 1}, ["\ud800"], _cycle(), _deep(),
     {None: {object()}}, msgspec.Raw(b"\xff"), type],
)  # fmt: skip
def test_what_cannot_be_encoded_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError):
        encode_payload(value)


@pytest.mark.parametrize("value", [b"x" * 11, "x" * 9, ["x€€"]])
def test_a_payload_over_the_limit_is_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_PAYLOAD_BYTES", 10)
    with pytest.raises(PayloadTooLarge, match="is over the limit of 10"):
        encode_payload(value)
    assert encode_payload(b"x" * 10) == b"x" * 10


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", None),
        ("{", None),
        ("[" * 100_000, None),
        ('{"inner": 1}', Outer),
        ("{}", Outer),
        ("null", Outer),
        (b"\xff", Outer),
        ("1", Point),
        ('"blue"', Colour),
        ("{}", type),
        ("1", str),
    ],
)
def test_a_body_that_does_not_decode_is_a_typed_error(body: Any, kind: Any) -> None:
    with pytest.raises(UndecodablePayload, match="does not decode"):
        decode_payload(body, kind)
