"""Where a backup cannot go, it says so in our own words, and what was there is there still."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenantq
from tenantq.errors import NotATenantFile, TenantFileError, TenantInUse, WrongTenant
from tests.children import Child

HOLDER = """
    with tenantq.open(sys.argv[1]) as store:
        store.tenant("acme").enqueue("mail", "held")
        say("open")
        hear()
"""

READER = """
    import sqlite3
    connection = sqlite3.connect(sys.argv[1])
    connection.execute("SELECT count(*) FROM queue").fetchall()
    say("open")
    hear()
"""


@pytest.fixture
def globex(store: tenantq.Store) -> tenantq.Tenant:
    tenant = store.tenant("globex")
    tenant.enqueue("mail", 1)
    return tenant


def refused(tenant: tenantq.Tenant, dest: Path, error: type[TenantFileError], match: str) -> None:
    """Check that a backup is refused and changes nothing."""
    before = dest.read_bytes() if dest.is_file() else None
    names = sorted(dest.parent.iterdir())
    with pytest.raises(error, match=match) as caught:
        tenant.backup(dest)
    assert caught.value.tenant == tenant.id
    assert caught.value.hint
    assert before is None or dest.read_bytes() == before
    assert sorted(dest.parent.iterdir()) == names


def test_a_backup_below_a_file_is_a_typed_error(globex: tenantq.Tenant, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(TenantFileError, match="Not a directory"):
        globex.backup(tmp_path / "file" / "below" / "globex.db")


def test_no_backup_goes_into_its_store(store: tenantq.Store, globex: tenantq.Tenant, tmp_path: Path) -> None:
    store.tenant("acme").enqueue("mail", 1)
    (tmp_path / "link.db").symlink_to(store.tenant("acme").path)
    for place in (store.tenant("acme").path, globex.path, store.root / "new.db", tmp_path / "link.db"):
        with pytest.raises(TenantFileError, match="lies in a store"):
            globex.backup(place)
    assert store.tenant("acme").stats().ready == globex.stats().ready == 1


@pytest.mark.parametrize("is_open", [True, False])
def test_no_backup_becomes_a_tenant_of_another_store(
    globex: tenantq.Tenant, tmp_path: Path, is_open: bool
) -> None:
    with tenantq.open(tmp_path / "other") as other:
        theirs = other.tenant("globex")
        theirs.enqueue("mail", "theirs")
        if not is_open:
            other.close()
        with pytest.raises(TenantFileError, match="lies in a store"):
            globex.backup(theirs.path)
    with tenantq.open(tmp_path / "other") as other:
        assert other.tenant("globex").claim("mail")[0].payload == "theirs"


def test_another_tenants_backup_is_not_replaced(
    store: tenantq.Store, globex: tenantq.Tenant, tmp_path: Path
) -> None:
    store.tenant("acme").enqueue("mail", 1)
    copy = store.tenant("acme").backup(tmp_path / "copies" / "x.db")
    refused(globex, copy, WrongTenant, "is a backup of tenant 'acme'")


def test_what_is_no_backup_is_not_replaced_but_for_an_empty_file(globex: tenantq.Tenant, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "notes.txt").write_text("not a database" * 100)
    with contextlib.closing(sqlite3.connect(copies / "app.db")) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    for name in ("notes.txt", "app.db"):
        refused(globex, copies / name, NotATenantFile, "is no backup")
    (copies / "empty.db").touch()
    globex.backup(copies / "empty.db")
    assert tenantq.verify(copies / "empty.db").ready == 1


def test_a_directory_in_the_place_of_the_file_is_not_replaced(globex: tenantq.Tenant, tmp_path: Path) -> None:
    (tmp_path / "copies" / "globex.db").mkdir(parents=True)
    refused(globex, tmp_path / "copies", TenantFileError, "is no file")


def test_a_file_that_another_process_has_open_is_not_replaced(
    store: tenantq.Store, globex: tenantq.Tenant, tmp_path: Path
) -> None:
    copy = globex.backup(tmp_path / "copies" / "globex.db")
    with Child(READER, copy) as reader:
        assert reader.heard() == "open"
        with pytest.raises(TenantInUse, match="is in use"):
            globex.backup(copy)
        reader.say()
        assert reader.end() == 0
    globex.backup(copy)


def test_a_file_that_this_process_has_open_is_not_replaced(globex: tenantq.Tenant, tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "other") as other:
        other.tenant("globex").enqueue("mail", "theirs")
        os.link(other.tenant("globex").path, tmp_path / "link.db")
        with pytest.raises(TenantInUse, match="is in use"):
            globex.backup(tmp_path / "link.db")
        other.tenant("globex").enqueue("mail", "still theirs")


def test_a_backup_is_refused_where_another_process_holds_the_store_s_tenant(tmp_path: Path) -> None:
    with tenantq.open(tmp_path / "store") as store, Child(HOLDER, tmp_path / "other") as holder:
        assert holder.heard() == "open"
        store.tenant("acme").enqueue("mail", 1)
        with tenantq.open(tmp_path / "other") as other, pytest.raises(TenantFileError, match="lies in a store"):
            store.tenant("acme").backup(other.tenant("acme").path)
        holder.say()
        assert holder.end() == 0


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_backup_that_finds_no_room_leaves_the_older_one(globex: tenantq.Tenant, tmp_path: Path) -> None:
    copy = globex.backup(tmp_path / "copies" / "globex.db")
    globex.enqueue("mail", "x" * 200_000)
    before = copy.read_bytes()
    with files_of_at_most(100_000), pytest.raises(TenantFileError) as caught:
        globex.backup(copy)
    assert caught.value.path is not None
    assert copy.read_bytes() == before
    assert [path.name for path in copy.parent.iterdir()] == ["globex.db"]
    globex.enqueue("mail", "on it goes")
    globex.backup(copy)
    assert tenantq.verify(copy).ready == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_is_read_only_is_a_typed_error(globex: tenantq.Tenant, tmp_path: Path) -> None:
    copy = globex.backup(tmp_path / "copies" / "globex.db")
    copy.chmod(0o400)
    with pytest.raises(TenantFileError, match="Permission denied"):
        globex.backup(copy)
    copy.parent.chmod(0o500)
    with pytest.raises(TenantFileError, match="Permission denied"):
        globex.backup(copy.parent / "new.db")
    copy.parent.chmod(0o700)
