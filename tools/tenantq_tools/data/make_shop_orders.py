# ruff: noqa: RUF001 - the data is in several scripts on purpose
"""Make shop_orders.jsonl: 3,500 orders of six small shops that do not exist, the same ones at every run.

    python -m tenantq_tools.data.make_shop_orders

A line is `{"tenant": id, "order": {...}}`, in the order of `placed_at` over all shops. Amounts (`..._cents`)
are whole numbers of the currency's minor unit: a yen has none, so they are yen there. In every order

    subtotal = the sum of quantity * unit over its lines
    total = subtotal - discount + shipping       (a discount or shipping of nothing is left out)

and the refunds of an order come to no more than its total. What looks odd is valid and there to be carried
through unharmed: apostrophes, quotes, line breaks, emoji, right-to-left text, both normal forms of an accent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

SEED = 20_261_103
PATH = Path(__file__).with_name("shop_orders.jsonl")
FIRST_DAY = datetime(2026, 3, 2, tzinfo=UTC)
DAYS = 120


class Shop(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant: what it sells, to whom, and how its orders look."""

    tenant: str
    orders: int
    prefix: str
    currency: str
    locale: str
    shipping: tuple[int, ...]
    goods: tuple[tuple[str, str, int], ...]
    """SKU, title and unit price."""
    given: tuple[tuple[str, str], ...]
    """As written, and as it stands in an e-mail address."""
    family: tuple[tuple[str, str], ...]
    streets: tuple[str, ...]
    towns: tuple[str, ...]
    country: str
    notes: tuple[str, ...]


SHOPS = (
    Shop(
        tenant="bakery-lindqvist",
        orders=1300,
        prefix="BL",
        currency="SEK",
        locale="sv-SE",
        shipping=(0, 0, 4900),
        goods=(
            ("RAG-1", "Rågsurdeg", 5200),
            ("KNK-6", "Knäckebröd, 6 st", 3900),
            ("KAN-4", "Kanelbullar, 4 st", 6400),
            ("SEM-2", "Semlor, 2 st", 7800),
            ("PRI-8", 'Prinsesstårta "stor"', 38900),
            ("PAS", "Påse", 0),
        ),
        given=(("Åsa", "asa"), ("Björn", "bjorn"), ("Märta", "marta"), ("Nils", "nils"), ("Zoë", "zoe")),
        family=(("Öberg", "oberg"), ("Lindqvist", "lindqvist"), ("af Ugglas", "af.ugglas"), ("Ek", "ek")),
        streets=("Storgatan 4", "Ö. Esplanaden 11 B", "Å 1", "Box 7"),
        towns=("903 26 Umeå", "931 30 Skellefteå", "972 38 Luleå"),
        country="SE",
        notes=("Ring på!", "Utan nötter, tack 🙏", "Lämna hos grannen (nr 6)\nTack!"),
    ),
    Shop(
        tenant="Café Amélie",
        orders=800,
        prefix="CA",
        currency="EUR",
        locale="fr-FR",
        shipping=(0, 490, 690),
        goods=(
            ("ESP250", "Espresso «Nuit blanche» 250 g", 890),
            ("DEC250", "Déca à l’eau 250 g", 940),
            ("TAS", "Tasse ébréchée ☕", 350),
            ("ABO3", "Abonnement 3 mois", 5400),
            ("CAD", "Paquet cadeau 🎁", 0),
        ),
        given=(("Amélie", "amelie"), ("Jean-François", "jf"), ("Noémie", "noemie"), ("Loïc", "loic")),
        family=(("D’Angelo", "dangelo"), ("L'Hôte", "lhote"), ("Nuñez", "nunez"), ("Le Goff", "legoff")),
        streets=("3 bis, rue de l'Échiquier", "12 quai d’Orléans", "Lieu-dit « Le Puy »"),
        towns=("75010 Paris", "01000 Bourg-en-Bresse", "29200 Brest"),
        country="FR",
        notes=("Mouture fine s'il vous plaît", "Digicode : 47A12 # *", "C’est un cadeau — pas de prix !"),
    ),
    Shop(
        tenant="東京文具店",
        orders=550,
        prefix="TB",
        currency="JPY",
        locale="ja-JP",
        shipping=(0, 520, 880),
        goods=(
            ("P-038", "ゲルボールペン 0.38 黒", 165),
            ("N-A5", "方眼ノート A5", 480),
            ("F-M", "万年筆 〈中字〉", 13200),
            ("K-1", "消しゴム", 110),
            ("W-15", "和紙テープ 15mm 🌸", 275),
        ),
        given=(("花子", "hanako"), ("太郎", "taro"), ("さくら", "sakura"), ("ケン", "ken")),
        family=(("佐藤", "sato"), ("𠮷田", "yoshida"), ("髙橋", "takahashi"), ("五十嵐", "igarashi")),
        streets=("神保町1丁目2−3", "本郷7-3-1 🏠", "銀座4丁目 ビル5階"),
        towns=("〒101-0051 東京都千代田区", "〒113-0033 東京都文京区", "〒060-0001 札幌市"),
        country="JP",
        notes=("領収書をお願いします。", "不在の場合は宅配ボックスへ", "のし：御祝"),
    ),
    Shop(
        tenant="مكتبة النور",
        orders=400,
        prefix="NUR",
        currency="EGP",
        locale="ar-EG",
        shipping=(2500, 4000),
        goods=(
            ("B-101", "ألف ليلة وليلة", 18500),
            ("B-207", "قاموس عربي–English", 24000),
            ("B-333", "شعر (ط. ٢)", 9900),
            ("S-9", "دفتر", 1750),
        ),
        given=(("ليلى", "layla"), ("عمر", "omar"), ("نور", "nour"), ("مريم", "maryam")),
        family=(("حسن", "hassan"), ("عبد الرحمن", "abdelrahman"), ("السيّد", "elsayed")),
        streets=("١٢ شارع النيل", "Flat 4, 26th of July St / شقة ٤", "ميدان التحرير"),
        towns=("القاهرة 11511", "الإسكندرية 21500"),
        country="EG",
        notes=("التسليم بعد الساعة 5 PM من فضلك", "هدية 🎈 لا ترسل الفاتورة", "رقم الطلب السابق: NUR-00017"),
    ),
    Shop(
        tenant="O'Brien & Sons, Hardware",
        orders=400,
        prefix="OB",
        currency="GBP",
        locale="en-GB",
        shipping=(0, 395, 1250),
        goods=(
            ("SCR-4X40", "Screws 4×40 mm (100)", 425),
            ("HAM-16", 'Hammer, 16 oz, "the good one"', 1899),
            ("PNT-MAG", "Paint, magnolia, 5 l", 2450),
            ("ROPE", "Rope, per metre", 85),
            ("NUL", "NULL modem cable", 699),
        ),
        given=(("Siobhán", "siobhan"), ("Bobby", "bobby"), ("José", "jose"), ("Jose\u0301", "jose2")),
        family=(
            ("O'Brien", "obrien"),
            ("Null", "null"),
            ("Smith-Jones", "smith-jones"),
            ("Tables", "tables"),
        ),
        streets=("1 High St", "Flat 2/1, 14½ Mill Ln", "The Old Forge\nBack Lane", "C/O O’Neill, 5 The Row"),
        towns=("Ballymena BT43 6AB", "Ely CB7 4DL", "St. Helier JE2 3AB"),
        country="GB",
        notes=(
            "Robert'); DROP TABLE orders;--",
            "Leave behind the bins \\ NOT with no. 3",
            "<b>fragile</b> & heavy",
            "Thanks 👩‍👩‍👧‍👦!",
            "Deliver to the yard. " * 40,
        ),
    ),
    Shop(
        tenant="Кооператив «Лісові ягоди та гриби Карпатського краю», крамниця № 7, площа Ринок, Львів",
        orders=50,
        prefix="К7",
        currency="UAH",
        locale="uk-UA",
        shipping=(6500, 9000),
        goods=(
            ("ЯГ-1", "Чорниця сушена, 200 г", 18000),
            ("ГР-3", "Білі гриби, 100 г", 26500),
            ("МД", "Мед з п'ятьох лук 🍯", 21000),
        ),
        given=(("Олена", "olena"), ("Мар'яна", "mariana"), ("Ґедимін", "gedymin")),
        family=(("Шевченко", "shevchenko"), ("Їжакевич", "yizhakevych"), ("Лук’яненко", "lukianenko")),
        streets=("вул. Ґонти, 5", "пл. Ринок, 7, кв. 2"),
        towns=("79008 Львів", "76018 Івано-Франківськ"),
        country="UA",
        notes=("Будь ласка, без пластику 🌿", "Зателефонуйте за 1 год."),
    ),
)

QUANTITIES = (1, 1, 1, 1, 2, 2, 3, 6, 144)
DOMAINS = ("example.org", "example.com", "example.net")
REASONS = ("damaged", "late", "not as described", "changed their mind")


def orders() -> Iterator[dict[str, Any]]:
    """Yield the lines of the file, as objects."""
    dice = random.Random(SEED)
    moments = sorted(
        (FIRST_DAY + timedelta(seconds=dice.randrange(DAYS * 86_400)), shop_number, number)
        for shop_number, shop in enumerate(SHOPS)
        for number in range(shop.orders)
    )
    placed = [0] * len(SHOPS)
    for moment, shop_number, _ in moments:
        placed[shop_number] += 1
        shop = SHOPS[shop_number]
        yield {"tenant": shop.tenant, "order": _order(dice, shop, placed[shop_number], moment)}


def lines() -> Iterator[str]:
    """Yield the lines of the file, as text."""
    for order in orders():
        yield json.dumps(order, ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> None:
    """Write the file."""
    with PATH.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines())


def _order(dice: random.Random, shop: Shop, number: int, moment: datetime) -> dict[str, Any]:
    given, given_ascii = dice.choice(shop.given)
    family, family_ascii = dice.choice(shop.family)
    family_first = shop.locale == "ja-JP"
    goods = dice.sample(shop.goods, dice.choice((1, 1, 1, 1, 1, 2, 2, 3)))
    bought: list[dict[str, Any]] = [
        {"sku": sku, "title": title, "quantity": dice.choice(QUANTITIES), "unit_cents": unit_cents}
        for sku, title, unit_cents in goods
    ]
    subtotal = sum(line["quantity"] * line["unit_cents"] for line in bought)
    order: dict[str, Any] = {
        "number": f"{shop.prefix}-{number:05}",
        "placed_at": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "customer": {
            "name": f"{family} {given}" if family_first else f"{given} {family}",
            "email": f"{given_ascii}.{family_ascii}@{dice.choice(DOMAINS)}",
            "locale": shop.locale,
        },
        "lines": bought,
        "currency": shop.currency,
        "ship_to": [dice.choice(shop.streets), dice.choice(shop.towns), shop.country],
        "subtotal_cents": subtotal,
    }
    discount = subtotal // 10 if dice.random() < 0.08 else 0
    shipping = dice.choice(shop.shipping)
    if discount:
        order["discount_cents"] = discount
    if shipping:
        order["shipping_cents"] = shipping
    order["total_cents"] = subtotal - discount + shipping
    if dice.random() < 0.06:
        order["note"] = dice.choice(shop.notes)
    if order["total_cents"] and dice.random() < 0.03:
        order["refunds"] = [_refund(dice, order["total_cents"], moment)]
    return order


def _refund(dice: random.Random, total: int, moment: datetime) -> dict[str, Any]:
    at = moment + timedelta(hours=dice.randint(1, 240))
    return {
        "amount_cents": total if dice.random() < 0.5 else dice.randint(1, total),
        "reason": dice.choice(REASONS),
        "at": f"{at:%Y-%m-%dT%H:%M:%SZ}",
    }


if __name__ == "__main__":
    main()
