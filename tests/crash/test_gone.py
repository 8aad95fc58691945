"""A deletion, an export or an import that is killed at a point: one owner or none; the same call finishes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenantq
from tenantq import _schema
from tenantq.errors import TenantDeleted, TenantExists, TenantGone, TenantMoved
from tests.children import Child

KILLED = """
from tenantq import _deleting, _moving

root, verb, argument, point = sys.argv[1:]
module = _deleting if verb == "delete" else _moving
module.reached = lambda step: stop_here("at the point") if step == point else None
store = tenantq.open(root)
if verb == "delete":
    store.delete("acme", backups=[argument])
elif verb == "export":
    store.export("acme", argument)
elif verb == "import":
    store.import_(argument)
else:
    store.undo_export("acme")
"""


def killed(root: Path, verb: str, argument: Path, point: str) -> None:
    with Child(KILLED, root, verb, argument, point) as child:
        assert child.heard() == "at the point"
        child.kill()


def fill(root: Path) -> None:
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        acme.enqueue_many("mail", range(3))
        acme.claim("mail")
        acme.emit("topic", 1)
        acme.outbox.mark_forwarded(1, acme.outbox.event_id_at(1))


def payloads(store: tenantq.Store) -> list[object]:
    return [message.payload for message in store.tenant("acme").peek("mail")]


def held(store: tenantq.Store) -> int:
    stats = store.tenant("acme").stats()
    return stats.ready + stats.claimed  # a lease ends by an import alone


@pytest.mark.parametrize("point", ["sealed", "buried", "replica removed", "backups removed", "file removed"])
def test_a_deletion_that_is_killed_is_finished_by_the_next(tmp_path: Path, point: str) -> None:
    root, copies = tmp_path / "store", tmp_path / "copies"
    copies.mkdir()
    fill(root)
    with tenantq.open(root) as store:
        store.tenant("acme").backup(copies)
    killed(root, "delete", copies, point)
    with tenantq.open(root) as store:
        with pytest.raises(TenantDeleted):
            store.tenant("acme").enqueue("mail", "late")
        store.delete("acme", backups=[copies])
        assert list(store.tenants()) == []
        assert list(copies.iterdir()) == []
        assert [entry.name for entry in _schema.path_of(root, "acme").parent.iterdir()] == ["acme.deleted"]
        with pytest.raises(TenantDeleted):
            store.tenant("acme").enqueue("mail", "late")


@pytest.mark.parametrize("how", ["again", "undo"])
@pytest.mark.parametrize("point", ["sealed", "copied", "buried", "removed"])
def test_an_export_that_is_killed_is_finished_or_undone(tmp_path: Path, point: str, how: str) -> None:
    root, there, target = tmp_path / "store", tmp_path / "there", tmp_path / "acme.move"
    fill(root)
    killed(root, "export", target, point)
    assert not target.exists()
    with tenantq.open(root) as store, tenantq.open(there) as other:
        with pytest.raises(TenantMoved) as caught:
            store.tenant("acme").enqueue("mail", "late")
        assert caught.value.to == str(target)
        with pytest.raises(tenantq.TenantqError):
            other.import_(tmp_path / "acme.move.partial")
        with pytest.raises(TenantGone):
            store.delete("acme", events="drop") if point != "removed" else store.tenant("acme", create=False)
        if how == "undo":
            store.undo_export("acme")
            assert held(store) == 3
            assert tenantq.verify(store.tenant("acme").path).ok
            store.tenant("acme").enqueue("mail", 3)
        else:
            store.export("acme", target)
            other.import_(target)
            assert payloads(other) == [0, 1, 2]
            with pytest.raises(TenantMoved):
                store.tenant("acme").enqueue("mail", "late")


@pytest.mark.parametrize("point", ["copied", "announced", "taken", "placed"])
def test_an_import_that_is_killed_is_finished_and_enters_no_other_store(tmp_path: Path, point: str) -> None:
    root, there, target = tmp_path / "store", tmp_path / "there", tmp_path / "acme.move"
    fill(root)
    with tenantq.open(root) as store:
        store.export("acme", target)
    killed(there, "import", target, point)
    with tenantq.open(there) as other, tenantq.open(root) as store:
        if point in ("taken", "placed"):
            with pytest.raises(TenantMoved):
                store.undo_export("acme")
        if point == "placed":
            with pytest.raises(TenantExists):
                other.import_(target)
        else:
            assert list(other.tenants()) == []
            if point != "copied":
                with pytest.raises(TenantMoved):
                    other.tenant("acme").enqueue("mail", "in its place")
            other.import_(target)
        assert payloads(other) == [0, 1, 2]
        assert tenantq.verify(other.tenant("acme").path).ok


@pytest.mark.parametrize("point", ["partial removed", "taken", "placed"])
def test_an_undoing_that_is_killed_is_finished_by_the_next(tmp_path: Path, point: str) -> None:
    root, target = tmp_path / "store", tmp_path / "acme.move"
    fill(root)
    if point == "partial removed":
        killed(root, "export", target, "buried")
    else:
        with tenantq.open(root) as store:
            store.export("acme", target)
    killed(root, "undo", target, point)
    with tenantq.open(root) as store:
        if point == "placed":
            with pytest.raises(TenantExists):
                store.undo_export("acme")
        else:
            store.undo_export("acme")
        assert held(store) == 3
