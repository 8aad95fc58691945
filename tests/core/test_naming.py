from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

import tenantq
from tenantq import naming
from tenantq.errors import InvalidName, InvalidTenantId

HOSTILE = [
    "../x", "a/../../x", "..", ".", "/etc/passwd", "\\..\\x", ":memory:", "file:x?mode=memory", "?", "#", "%41",
    "%2e%2e", "x.db", "acme.db-wal", "acme.db", "-wal", ".hidden", "-rf", "~", "~root", "con", "CON", "nul",
    "com1", "aux.db", "Tenant", "tenant", "TENANT", "octocat", "Octocat", "ß", "ss", "ẞ",
    "\N{LATIN SMALL LETTER DOTLESS I}", "i", "I", "İ", "K", "\N{KELVIN SIGN}",
    unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "Å", "\N{ANGSTROM SIGN}", " ", "  ",
    "a ", " a", "a.", "a..", "'; DROP TABLE queue; --", '"', "*", "|", "\u202e\u202d", "\u200b", "\ufeff",
    "\ufffe", "\U0010ffff", "\N{PILE OF POO}" * 128, "a" * 63, "a" * 64, "a" * 128, "é" * 128, "x" * 127 + "é",
    "_", "-", "_a", "a_", "0", "00", "ff", "\u2028", "\u00a0", "acme corp", "ACME Corp", "acme-corp",
]  # fmt: skip


@pytest.mark.parametrize("tenant_id", HOSTILE)
def test_a_file_name_stays_in_its_directory(tenant_id: str) -> None:
    name = naming.file_name(tenant_id)
    assert Path(name).name == name
    assert name.isascii()
    assert name.endswith(".db")
    assert not name.startswith((".", "-"))
    assert not set(name) & set("/\\:?#%*\"<>| '\0")
    assert len(name) + len("-journal") <= 255


def test_no_two_ids_share_a_file_on_any_file_system() -> None:
    names = [naming.file_name(tenant_id) for tenant_id in HOSTILE]
    folded = {unicodedata.normalize("NFKD", name).casefold() for name in names}
    assert len(folded) == len(HOSTILE) == len(set(HOSTILE))


@pytest.mark.parametrize("tenant_id", HOSTILE)
def test_a_file_name_leads_back_to_its_id(tenant_id: str) -> None:
    name = naming.file_name(tenant_id)
    assert naming.tenant_id_of(name) == (None if naming.is_hashed(name) else tenant_id)


def test_a_readable_id_names_its_file() -> None:
    assert naming.file_name("acme") == "acme.db"
    assert naming.file_name("octocat_2-x") == "octocat_2-x.db"


@pytest.mark.parametrize(
    "name",
    [
        "acme.db-wal",
        "acme.txt",
        ".db",
        "Acme.db",
        "acme",
        ".new-0123.db",
        "x.zzzz.db",
        "acme.00.db",
        "con.db",
        "a.b.c.db",
    ],
)
def test_a_name_that_no_id_leads_to_is_no_tenant(name: str) -> None:
    assert naming.tenant_id_of(name) is None


@pytest.mark.parametrize("tenant_id", ["", "a" * 129, "a\0b", "\n", "tab\t", "\x7f", "\x9f", "\ud800", "a\udfff"])
def test_an_id_is_refused_that_is_empty_too_long_or_cannot_be_shown(tenant_id: str) -> None:
    with pytest.raises(InvalidTenantId) as caught:
        naming.check_tenant_id(tenant_id)
    assert str(caught.value).isprintable()
    with pytest.raises(InvalidName, match="key"):
        naming.check_name(tenant_id, "key")


@pytest.mark.parametrize("tenant_id", [None, 1, b"acme", Path("acme"), ["acme"]])
def test_an_id_that_is_no_text_is_refused(tenant_id: object, store: tenantq.Store) -> None:
    with pytest.raises(InvalidTenantId, match="not a str"):
        store.tenant(tenant_id)  # type: ignore[arg-type]
    assert tenant_id not in store


def test_every_tenant_has_its_own_file_inside_of_the_store_and_is_listed(store: tenantq.Store) -> None:
    outside = set(store.root.parent.iterdir())
    for tenant_id in HOSTILE:
        store.tenant(tenant_id).enqueue("mail", tenant_id)
    assert set(store.root.parent.iterdir()) == outside
    assert sorted(store.tenants()) == sorted(HOSTILE)
    assert all(naming.is_shard(path.name) for path in store.root.iterdir() if path.is_dir())
    for tenant_id in HOSTILE:
        assert tenant_id in store
        assert [message.payload for message in store.tenant(tenant_id).claim("mail", 9)] == [tenant_id]
    for tenant_id in HOSTILE:
        assert store.delete(tenant_id)
    assert list(store.tenants()) == []


def test_listing_a_tenant_by_its_hash_leaves_its_file_alone(store: tenantq.Store) -> None:
    tenant_id = "é" * 128
    store.tenant(tenant_id).enqueue("mail", 1)
    path = store.tenant(tenant_id).path
    store.close()
    with tenantq.open(store.root) as again:
        assert list(again.tenants()) == [tenant_id]
        assert list(path.parent.iterdir()) == [path]


def test_names_of_queues_may_be_what_ids_may_be(acme: tenantq.Tenant) -> None:
    for name in HOSTILE:
        acme.enqueue(name, name, key=name)
    for name in HOSTILE:
        assert [message.payload for message in acme.claim(name, 9, worker=name)] == [name]
