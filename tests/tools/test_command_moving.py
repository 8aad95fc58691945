"""`tenantq delete`, `create`, `export` and `import`: a tenant goes, and comes again on purpose."""

from __future__ import annotations

from pathlib import Path

import tenantq
from tests.tools.command import StoreCommand


def test_a_deleted_tenant_is_listed_refused_and_made_again(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq("backup", "--all", str(tmp_path / "copies"))
    report = tq.json("delete", "acme", "--backups", str(tmp_path / "copies"), "--yes")
    assert (report["deleted"], report["messages"], len(report["files"])) == (True, 1, 2)
    assert list((tmp_path / "copies").glob("*/acme/*")) == []
    (gone,) = tq.json_lines("tenants", "--deleted")
    assert (gone["tenant"], gone["went"]) == ("acme", "deleted")
    assert tq("tenants", "--deleted").stdout.startswith("acme: deleted at ")
    refused = tq("enqueue", "acme", "jobs", "2", status=1)
    assert "hint: `tenantq create` makes it anew" in refused.stderr
    assert tq("create", "acme").stdout == "acme: made\n"
    assert tq("enqueue", "acme", "jobs", "2").stdout
    assert tq("tenants", "--deleted").stdout == ""


def test_events_that_wait_are_not_deleted_unasked(tq: StoreCommand) -> None:
    with tenantq.open(tq.path) as store:
        store.tenant("acme").emit("topic", 1)
    refused = tq("delete", "acme", "--yes", status=1)
    assert "has 1 events that Postgres has not got" in refused.stderr
    assert "--events" in refused.stderr
    assert tq.json("delete", "acme", "--events", "drop", "--yes")["pending"] == 1


def test_a_tenant_moves_to_another_store_and_can_be_taken_back(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    target, other = tmp_path / "acme.move", StoreCommand(tmp_path / "other")
    assert tq.json("export", "acme", str(target))["path"] == str(target)
    assert "was exported to" in tq("enqueue", "acme", "jobs", "3", status=1).stderr
    assert tq("export", "acme", "--undo").stdout == "acme: taken back\n"
    second = tmp_path / "second.move"
    tq("export", "acme", str(second))
    assert other.json("import", str(second))["tenant"] == "acme"
    assert other.json("stats", "acme")["ready"] == 2
    tq("export", "acme", "--undo", status=1)
    other("import", str(second), status=1)
    (gone,) = tq.json_lines("tenants", "--deleted")
    assert (gone["went"], gone["to"]) == ("moved", str(second))


def test_wrong_usage_and_no_exports_are_refused(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq("export", "acme", status=2)
    tq("export", "acme", str(tmp_path / "x"), "--undo", status=2)
    tq("delete", "acme", "--forget", "--yes", status=2)
    tq("export", "acme", str(tq.path / "x"), status=2)
    tq("export", "acme", str(tmp_path / "no" / "x"), status=3)
    tq("backup", "acme", str(tmp_path / "copy.db"))
    assert "is no export" in tq("import", str(tmp_path / "copy.db"), status=3).stderr
    (tmp_path / "text").write_bytes(b"nothing of ours" * 1000)
    tq("import", str(tmp_path / "text"), status=3)
    assert tq.json("stats", "acme")["ready"] == 1


def test_events_are_forwarded_and_postgres_forgets_the_tenant(tq: StoreCommand, migrated_dsn: str) -> None:
    with tenantq.open(tq.path) as store:
        store.tenant("acme").emit("topic", 1)
    postgres = ("--postgres", migrated_dsn)
    tq("bridge", "subscribe", "all", "*", *postgres)
    report = tq.json("delete", "acme", "--events", "forward", "--forget", "--yes", *postgres)
    assert (report["deleted"], report["pending"]) == (True, 0)
    assert report["postgres"] == {
        "messages": 1,
        "dead": 0,
        "history": 0,
        "applied": 0,
        "seen": 0,
        "forwarding": 0,
        "outgoing": 0,
        "owners": 0,
    }
    again = tq("delete", "acme", "--forget", "--yes", *postgres)  # finishes what was left
    assert "in Postgres there remain: 1 messages" in again.stdout
