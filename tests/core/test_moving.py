"""An export that fails leaves the tenant as it was, and one that did not is the only way back."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq
from tenantq.errors import (
    InvalidArgument,
    NotATenantFile,
    TenantExists,
    TenantFileError,
    TenantMoved,
    UnknownTenant,
)
from tests.children import Child


def test_an_export_that_cannot_be_written_leaves_the_tenant_as_it_was(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue("mail", 1)
    (message,) = acme.claim("mail")
    (tmp_path / "taken").write_bytes(b"mine")
    (tmp_path / "blocked.partial").mkdir()
    for target, kind in [
        (tmp_path / "taken", TenantFileError),
        (tmp_path / "no" / "x", TenantFileError),
        (store.root / "x", InvalidArgument),
        (tmp_path / "blocked", TenantFileError),
    ]:
        with pytest.raises(kind):
            store.export("acme", target)
    with pytest.raises(UnknownTenant):
        store.export("nobody", tmp_path / "x")
    assert (tmp_path / "taken").read_bytes() == b"mine"
    message.ack()
    assert acme.enqueue("mail", 2) == 2
    assert store.deleted() == []


def test_everything_goes_along(store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1, key="one")
    acme.enqueue("mail", 2, delay=60)
    acme.pause("other")
    with acme.transaction() as tx:
        tx.execute("CREATE TABLE app (a)")
        tx.execute("INSERT INTO app VALUES (7)")
    file_id = acme.outbox.position().file_id
    target = store.export("acme", tmp_path / "acme.move")
    assert list(store.tenants()) == []
    assert target.stat().st_mode & 0o777 == 0o600
    with tenantq.open(tmp_path / "other") as other:
        moved = other.import_(target)
        assert moved.enqueue("mail", 1, key="one") == 1
        assert moved.enqueue("mail", 3) == 3
        with moved.transaction() as tx:
            assert tx.execute("SELECT a FROM app") == [(7,)]
        assert moved.outbox.position().file_id == file_id
        assert tenantq.verify(moved.path).ok


def test_what_is_no_export_is_not_imported(store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    (tmp_path / "text").write_bytes(b"nothing of ours" * 1000)
    for source, kind in [
        (acme.backup(tmp_path / "copy.db"), TenantFileError),
        (tmp_path / "text", NotATenantFile),
        (tmp_path / "none", TenantFileError),
    ]:
        with pytest.raises(kind) as caught:
            store.import_(source)
        assert caught.value.message
    target = store.export("acme", tmp_path / "acme.move")
    store.create("acme")
    with pytest.raises(TenantExists):
        store.import_(target)


def test_an_export_is_no_tenant_and_no_backup(store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path) -> None:
    acme.enqueue("mail", 1)
    target = store.export("acme", tmp_path / "acme.move")
    with pytest.raises(TenantMoved):
        tenantq.verify(target)
    with tenantq.open(tmp_path / "other") as other, pytest.raises(TenantMoved):
        other.restore("acme", target)
    with pytest.raises(TenantMoved):
        store.delete("acme")


def test_an_undone_export_may_be_taken_from_where_it_is(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    acme.enqueue("mail", 1)
    target = store.export("acme", tmp_path / "acme.move")
    target.rename(tmp_path / "elsewhere")
    with pytest.raises(TenantMoved, match="not there any more") as caught:
        store.undo_export("acme")
    assert str(target) in caught.value.hint
    store.import_(tmp_path / "elsewhere")
    assert acme.stats().ready == 1
    with pytest.raises(TenantExists):
        store.undo_export("acme")


def test_another_process_that_writes_is_refused_and_nothing_of_it_is_lost(
    store: tenantq.Store, acme: tenantq.Tenant, tmp_path: Path
) -> None:
    writer = """
    tenant = tenantq.open(sys.argv[1]).tenant("acme")
    count = 0
    try:
        while True:
            tenant.enqueue("mail", count)
            count += 1
            if count == 1:
                say("writing")
    except tenantq.TenantMoved:
        say(count)
    """
    with Child(writer, store.root) as child, tenantq.open(tmp_path / "other") as other:
        assert child.heard() == "writing"
        moved = other.import_(store.export("acme", tmp_path / "acme.move"))
        assert moved.stats().ready == int(child.heard())
    assert not acme.path.exists()
