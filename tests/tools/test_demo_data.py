from __future__ import annotations

import json
import unicodedata
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from tenantq.naming import check_tenant_id, file_name, is_hashed, tenant_id_of
from tenantq_tools.data import make_shop_orders


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in make_shop_orders.PATH.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def orders(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line["order"] for line in lines]


def test_the_file_is_what_the_generator_makes() -> None:
    made = "".join(make_shop_orders.lines())
    assert make_shop_orders.PATH.read_bytes() == made.encode()
    assert made == "".join(make_shop_orders.lines())


def test_the_file_is_large_enough_to_be_real_and_small_enough_to_ship(lines: list[dict[str, Any]]) -> None:
    assert 3_000 <= len(lines) <= 4_500
    assert make_shop_orders.PATH.stat().st_size < 1_600_000


def test_the_totals_add_up(orders: list[dict[str, Any]]) -> None:
    for order in orders:
        subtotal = sum(line["quantity"] * line["unit_cents"] for line in order["lines"])
        total = subtotal - order.get("discount_cents", 0) + order.get("shipping_cents", 0)
        assert (order["subtotal_cents"], order["total_cents"]) == (subtotal, total)
        assert total >= 0
        assert 0 <= sum(refund["amount_cents"] for refund in order.get("refunds", ())) <= total


def test_every_order_is_whole(orders: list[dict[str, Any]]) -> None:
    for order in orders:
        assert order["lines"]
        assert all(line["sku"] and line["title"] and line["quantity"] > 0 for line in order["lines"])
        assert order["customer"]["name"]
        assert order["customer"]["locale"]
        assert order["customer"]["email"].isascii()
        assert order["customer"]["email"].rpartition("@")[2] in {"example.org", "example.com", "example.net"}
        assert len(order["ship_to"]) == 3
        assert len(order["currency"]) == 3


def test_orders_are_numbered_in_the_order_of_their_times(lines: list[dict[str, Any]]) -> None:
    placed = [datetime.fromisoformat(line["order"]["placed_at"]) for line in lines]
    assert placed == sorted(placed)
    seen: Counter[str] = Counter()
    for line in lines:
        seen[line["tenant"]] += 1
        assert int(line["order"]["number"].rpartition("-")[2]) == seen[line["tenant"]]


def test_the_tenants_have_names_of_every_kind(lines: list[dict[str, Any]]) -> None:
    names = {check_tenant_id(tenant): file_name(tenant) for tenant in {line["tenant"] for line in lines}}
    assert len(set(names.values())) == len(names) == 6
    readable = [name for tenant, name in names.items() if name == f"{tenant}.db"]
    hashed = [name for name in names.values() if is_hashed(name)]
    spelled = [tenant for tenant, name in names.items() if tenant_id_of(name) == tenant]
    assert (len(readable), len(hashed), len(spelled)) == (1, 1, 5)


def test_the_odd_values_are_there(orders: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(order, ensure_ascii=False) for order in orders)
    for odd in (
        "O'Brien",
        "D\u2019Angelo",
        "DROP TABLE",
        "👩‍👩‍👧‍👦",
        "🎁",
        "𠮷",
        "<b>",
        "\\n",
        '\\"',
        "\\\\",
        '"unit_cents": 0',
    ):
        assert odd in text, odd
    assert {unicodedata.bidirectional(character) for character in text} >= {"L", "AL", "AN"}
    assert unicodedata.normalize("NFC", text) != text
    assert max(len(order.get("note", "")) for order in orders) > 500
    assert sum("note" in order for order in orders) > 100
    assert sum("refunds" in order for order in orders) > 50
    assert sum("discount_cents" in order for order in orders) > 100
