"""A process killed at a point: what it acknowledged is there, what it did not is whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import tenantq
from tests.children import TRANSACTION_POINTS, Child

SCRIPT = """
from tenantq._file import TenantFile

root, point, action = sys.argv[1:]
store = tenantq.open(root)
tenant = store.tenant("acme")

def enqueue():
    tenant.enqueue_many("mail", ["new", "new"])

def claim():
    tenant.claim("mail", 2, lease=0.2)

def ack():
    tenant.ack(*held)

def dead_letter():
    held[0].dead_letter(error="no")

def transaction():
    with tenant.transaction() as tx:
        tx.execute("INSERT INTO app VALUES (1)")
        tx.enqueue("mail", "new")
        tx.emit("topic", 1)
        tx.ack(held[0])

def exchange():
    tenant.exchange(held, "mail", 1, lease=0.2)

def settle():
    tenant.reap()

held = tenant.claim("mail", 2, lease=0.2) if action in ("ack", "dead_letter", "transaction", "exchange") else []
stop_at(point)
globals()[action]()
say("returned")
hear()
"""

POINTS = ["after begin", "before commit", "after commit", "returned"]

AFTER: dict[str, dict[str, object]] = {
    "enqueue": {"mail": ["old", "old", "old", "new", "new"]},
    "claim": {"mail": ["old", "old", "old"]},
    "ack": {"mail": ["old"]},
    "dead_letter": {"mail": ["old", "old"], "dead": 1},
    "transaction": {"mail": ["old", "old", "new"], "outbox": 1, "app": [(1,)]},
    "exchange": {"mail": ["old"]},
}
BEFORE: dict[str, object] = {"mail": ["old", "old", "old"], "dead": 0, "outbox": 0, "app": []}


def state_when_leases_are_over(root: Path) -> dict[str, Any]:
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        assert tenantq.verify(acme.path).problems == ()
        claimed: list[object] = []
        while acme.stats().claimed:
            claimed += [message.payload for message in acme.claim("mail", 9, lease=60, wait=0.1)]
            if acme.next_due() is None or len(claimed) == acme.stats().claimed:
                break
        claimed += [message.payload for message in acme.claim("mail", 9, lease=60)]
        stats = acme.stats()
        with acme.transaction() as tx:
            app = tx.execute("SELECT * FROM app")
        return {
            "mail": sorted(map(str, claimed), reverse=True),
            "dead": stats.dead,
            "outbox": stats.outbox,
            "app": app,
        }


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("action", AFTER)
def test_a_call_of_a_killed_process_is_whole_or_absent(tmp_path: Path, action: str, point: str) -> None:
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        acme.enqueue_many("mail", ["old"] * 3)
        with acme.transaction() as tx:
            tx.execute("CREATE TABLE app (a)")
    with Child(TRANSACTION_POINTS + SCRIPT, tmp_path, point, action) as child:
        assert child.heard() == ("returned" if point == "returned" else "at the point")
        child.kill()
    happened = point in ("after commit", "returned")
    expected = {**BEFORE, **(AFTER[action] if happened else {})}
    found = state_when_leases_are_over(tmp_path)
    assert found == {**expected, "mail": sorted(expected["mail"], reverse=True)}  # type: ignore[call-overload]


CREATOR = """
import os
from tenantq import _creation, _schema

way, point = sys.argv[2:]
if way == "named":
    _creation._NAMELESS = 0
if point == "building":
    _schema.write_schema = lambda *_: stop_here("at the point")
elif point == "writing":
    _creation._sync_data = lambda *_: stop_here("at the point")
elif point == "linking":
    _creation.os.link = lambda *_, **__: stop_here("at the point")
elif point == "linked":
    sync = _schema.sync_directory
    _schema.sync_directory = lambda path: stop_here("at the point") if len(path.name) == 2 else sync(path)
tenantq.open(sys.argv[1], durability="full").tenant("acme").enqueue("mail", 1)
"""


@pytest.mark.parametrize("way", ["nameless", "named"])
@pytest.mark.parametrize("point", ["building", "writing", "linking", "linked"])
def test_a_tenant_is_made_whole_or_not_at_all(tmp_path: Path, point: str, way: str) -> None:
    with Child(CREATOR, tmp_path, way, point) as child:
        assert child.heard() == "at the point"
        child.kill()
    (shard,) = [path for path in tmp_path.iterdir() if path.is_dir()] or [tmp_path]
    left = [path for path in shard.iterdir() if path.name.startswith(".new-")]
    assert len(left) == (way == "named" and point in ("writing", "linking"))
    with tenantq.open(tmp_path) as store:
        assert list(store.tenants()) == (["acme"] if point == "linked" else [])
        acme = store.tenant("acme")
        acme.enqueue("mail", 2)
        assert [message.payload for message in acme.peek("mail")] == [2]
        assert tenantq.verify(acme.path).ok
        for path in left:
            os.utime(path, (0, 0))
        assert list(store.tenants()) == ["acme"]
    assert [path.name for path in acme.path.parent.iterdir()] == ["acme.db"]


RESTORER = """
from pathlib import Path
from tenantq import _restoring, _schema

point = sys.argv[3]
replace, remove = Path.replace, _schema.remove_sidecars

def stop_before_replace(self, target):
    if str(target).endswith("acme.db"):
        stop_here("at the point")
    return replace(self, target)

def stop_after_replace(self, target):
    result = replace(self, target)
    stop_here("at the point")
    return result

def stop_before_copy(*_):
    stop_here("at the point")

match point:
    case "copied":
        _restoring.check_sound = stop_before_copy
    case "before the swap":
        Path.replace = stop_before_replace
    case "sidecars cleared":
        def clear_and_stop(path):
            remove(path)
            if path.name == "acme.db":
                stop_here("at the point")
        _schema.remove_sidecars = clear_and_stop
    case "ids raised":
        _restoring._put_in_place = stop_before_copy
    case "after the swap":
        Path.replace = stop_after_replace
tenantq.open(sys.argv[1]).restore("acme", sys.argv[2])
"""


@pytest.mark.parametrize(
    "point", ["copied", "ids raised", "sidecars cleared", "before the swap", "after the swap"]
)
def test_a_restore_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path: Path, point: str) -> None:
    with tenantq.open(tmp_path / "store") as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", "saved")
        acme.backup(tmp_path / "x.db")
        acme.enqueue("mail", "later")
    with Child(RESTORER, tmp_path / "store", tmp_path / "x.db", point) as child:
        assert child.heard() == "at the point"
        child.kill()
    with tenantq.open(tmp_path / "store") as store:
        acme = store.tenant("acme")
        payloads = [message.payload for message in acme.peek("mail")]
        assert payloads == (["saved"] if point == "after the swap" else ["saved", "later"])
        assert tenantq.verify(acme.path).ok
        store.restore("acme", tmp_path / "x.db")
        assert acme.stats().ready == 1
        assert acme.enqueue("mail", "next") == 3


@pytest.mark.parametrize("point", ["copied", "before the swap", "after the swap"])
def test_a_copy_under_another_id_that_is_killed_is_whole_or_absent(tmp_path: Path, point: str) -> None:
    with tenantq.open(tmp_path / "store") as store:
        acme = store.tenant("acme")
        acme.enqueue("mail", "saved")
        acme.backup(tmp_path / "x.db")
    script = RESTORER.replace("sys.argv[2])", 'sys.argv[2], as_="look")').replace("acme.db", "look.db")
    with Child(script, tmp_path / "store", tmp_path / "x.db", point) as child:
        assert child.heard() == "at the point"
        child.kill()
    with tenantq.open(tmp_path / "store") as store:
        is_there = point == "after the swap"
        assert sorted(store.tenants()) == (["acme", "look"] if is_there else ["acme"])
        if not is_there:
            store.restore("acme", tmp_path / "x.db", as_="look")
        look = store.tenant("look")
        assert [message.payload for message in look.peek("mail")] == ["saved"]
        assert look.claim("mail") == []
        assert tenantq.verify(look.path).ok


DELETER = """
from tenantq import _deleting

_deleting.reached = lambda step: stop_here("at the point") if step == "file removed" else None
store = tenantq.open(sys.argv[1])
store.delete("acme")
"""


def test_a_delete_that_is_killed_leaves_nothing_of_the_old_tenant(tmp_path: Path) -> None:
    with Child(
        'tenantq.open(sys.argv[1]).tenant("acme").enqueue("mail", "old"); stop_here("x")', tmp_path
    ) as child:
        child.heard()
        child.kill()
    with Child(DELETER, tmp_path) as child:
        assert child.heard() == "at the point"
        child.kill()
    with tenantq.open(tmp_path) as store:
        assert list(store.tenants()) == []
        store.create("acme").enqueue("mail", "new")
        assert [message.payload for message in store.tenant("acme").peek("mail")] == ["new"]
