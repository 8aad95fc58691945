"""`tenantq backup`, `restore` and `verify`: there and back, and what is told of what is damaged."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

import tenantq
from tests.children import Child
from tests.tools.command import StoreCommand, run

LONG = "🦆" * 60  # too long for a file name to spell: only the file itself says whose it is


def damage(path: Path) -> None:
    """Write over everything behind the first page."""
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(bytes(data))


def test_a_backup_is_complete_while_the_tenant_is_open(tq: StoreCommand, tmp_path: Path) -> None:
    with tenantq.open(tq.path) as store:
        acme = store.tenant("acme")
        acme.enqueue_many("jobs", range(100))
        document = tq.json("backup", "acme", str(tmp_path / "copies" / "acme.db"))
        acme.enqueue("jobs", 100)
    assert document["path"] == str(tmp_path / "copies" / "acme.db")
    assert document["bytes"] == (tmp_path / "copies" / "acme.db").stat().st_size
    assert tenantq.verify(document["path"]).ready == 100


def test_a_backup_and_a_restore_bring_everything_back(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", {"n": 1}, {"n": 2})
    copy = tmp_path / "copy.db"
    tq("backup", "acme", str(copy))
    assert len(tq.claim("acme", "jobs")) == 2
    assert "Nothing was done." in tq("restore", "acme", str(copy), input="n\n", status=1).stderr
    assert tq.json("stats", "acme")["ready"] == 0
    assert "acme: replaced from" in tq("restore", "acme", str(copy), "--yes").stdout
    assert [message.payload for message in tq.claim("acme", "jobs")] == [{"n": 1}, {"n": 2}]
    other = StoreCommand(tmp_path / "other")
    assert other.json("restore", "acme", str(copy))["replaced"] is False
    assert other.json("stats", "acme")["ready"] == 2


def test_all_are_backed_up_and_restored_whatever_their_names(tq: StoreCommand, tmp_path: Path) -> None:
    ids = ["acme", "ACME", "../../x", LONG]
    for number, tenant in enumerate(ids):
        tq.enqueue(tenant, "jobs", number)
    *lines, summary = tq.json_lines("backup", "--all", str(tmp_path / "copies"))
    assert sorted(line["tenant"] for line in lines) == sorted(ids)
    assert summary["taken"] == summary["tenants"] == 4
    assert all(Path(line["path"]).parent.name == tq.file_of(line["tenant"]).stem for line in lines)
    reports = run("verify", *[line["path"] for line in lines]).stdout.splitlines()
    assert [line.split()[0] for line in reports] == ["ok"] * 4
    other = StoreCommand(tmp_path / "other")
    for line in lines:
        other("restore", "--", line["tenant"], line["path"])
    assert [other.claim(tenant, "jobs")[0].payload for tenant in ids] == [0, 1, 2, 3]


def test_a_second_run_copies_what_changed_and_removes_what_is_old(tq: StoreCommand, tmp_path: Path) -> None:
    directory = tmp_path / "copies"
    for tenant in ("acme", "globex", "initech"):
        tq.enqueue(tenant, "jobs", 1)
    assert "3 tenants: 3 backed up" in tq("backup", "--all", str(directory)).stdout
    tq.enqueue("globex", "jobs", 2)
    result = tq("backup", "--all", str(directory), "--keep", "1", "--jobs", "2")
    assert "1 backed up" in result.stdout
    assert "0 failed; 1 old ones were removed" in result.stdout
    assert sum(1 for _ in directory.glob("*/*/*.db")) == 3
    with tenantq.open(tmp_path / "other") as other:
        for tenant in ("acme", "globex", "initech"):
            other.restore(tenant, tenantq.BackupDirectory(directory).find(tenant).path)
        assert other.tenant("globex").stats().ready == 2


@pytest.mark.parametrize("broken", ["acme", LONG])
def test_a_tenant_that_cannot_be_backed_up_is_named_and_the_others_go_on(
    tq: StoreCommand, tmp_path: Path, broken: str
) -> None:
    tq.enqueue(broken, "jobs", 1)
    tq.enqueue("globex", "jobs", 2)
    tq.file_of(broken).write_bytes(b"nothing of ours" * 1000)
    result = tq("backup", "--all", str(tmp_path / "copies"), status=1)
    assert "1 backed up" in result.stdout
    assert result.stdout.rstrip().endswith("1 failed")
    assert result.stderr.startswith("acme: " if broken == "acme" else str(tq.file_of(broken)))
    tq.enqueue("globex", "jobs", 3)
    *lines, summary = tq.json_lines("backup", "--all", str(tmp_path / "copies"), status=1)
    assert sorted(line["error"] is None for line in lines) == [False, True]
    assert summary["failed"] == 1
    assert {file.parent.name for file in (tmp_path / "copies").rglob("*.db")} == {"globex"}


def test_another_stores_backups_are_not_mixed_with_these(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq("backup", "--all", str(tmp_path / "copies"))
    moved = StoreCommand(tmp_path / "moved")
    moved.enqueue("acme", "jobs", 1)
    assert "has backups of the store" in moved("backup", "--all", str(tmp_path / "copies"), status=3).stderr
    moved("backup", "--all", str(tmp_path / "copies"), "--moved")
    moved("backup", "--all", str(tmp_path / "copies"))


def test_a_backup_never_goes_into_the_store(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1)
    for target in (tq.path, tq.file_of("acme"), tq.file_of("acme").parent):
        assert "not go into the store" in tq("backup", "acme", str(target), status=2).stderr
    assert "not go into the store" in tq("backup", "--all", str(tq.path), status=2).stderr


def test_a_place_that_cannot_be_written_to_is_an_error_and_no_trace(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    (tmp_path / "file").write_text("no directory")
    for arguments in (
        ["--all", str(tmp_path / "file" / "below")],
        ["acme", str(tmp_path / "file" / "below" / "x")],
    ):
        assert "Not a directory" in tq("backup", *arguments, status=3).stderr


@pytest.mark.parametrize("targets", [[], ["acme"], ["acme", "a", "b"], ["--all"], ["--all", "a", "b"]])
def test_backup_wants_a_tenant_and_a_place_or_all_and_a_place(tq: StoreCommand, targets: list[str]) -> None:
    assert "give TENANT DEST, or --all DIR" in tq("backup", *targets, status=2).stderr


def test_a_backup_that_cannot_be_restored_leaves_the_tenant_as_it_is(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq.enqueue("globex", "jobs", 2)
    copy, text, broken = tmp_path / "globex.db", tmp_path / "text.db", tmp_path / "broken.db"
    tq("backup", "globex", str(copy))
    text.write_text("no database")
    shutil.copy(copy, broken)
    damage(broken)
    assert "belongs to tenant 'globex'" in tq("restore", "acme", str(copy), "--yes", status=3).stderr
    assert "is not a SQLite database" in tq("restore", "acme", str(text), "--yes", status=3).stderr
    tq("restore", "globex", str(broken), "--yes", status=3)
    assert "does not exist" in tq("restore", "acme", str(tmp_path / "no.db"), "--yes", status=2).stderr
    assert [tq.claim(tenant, "jobs")[0].payload for tenant in ("acme", "globex")] == [1, 2]


def test_verify_says_what_sound_files_hold(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    assert tq("verify", "acme").stdout == ("ok   acme: 2 ready, 0 scheduled, 0 claimed, 0 dead, 0 in the outbox\n")
    document = tq.json("verify", str(tq.file_of("acme")), "--quick")
    assert document == {
        "ok": True,
        "path": str(tq.file_of("acme")),
        "tenant": "acme",
        "problems": [],
        "schema_version": 2,
        "ready": 2,
        "scheduled": 0,
        "claimed": 0,
        "dead": 0,
        "outbox": 0,
        "checked": 0,
    }


def test_verify_names_every_file_that_is_damaged_and_goes_on(tq: StoreCommand, tmp_path: Path) -> None:
    for tenant in ("acme", "globex", LONG):
        tq.enqueue(tenant, "jobs", *range(300))
    with sqlite3.connect(tq.file_of("acme")) as connection:
        connection.execute("UPDATE tenantq_depth SET ready = 7")
    connection.close()
    damage(tq.file_of(LONG))
    tq.file_of("initech").parent.mkdir(exist_ok=True)
    shutil.copy(tq.file_of("globex"), tq.file_of("initech"))
    lines = tq.json_lines("verify", "--all", status=1)
    found = {Path(line["path"]).name: line for line in lines}
    assert len(found) == 4
    assert found["globex.db"]["ok"]
    assert "is said to hold (7, 0, 0, 0)" in found["acme.db"]["problems"][0]
    assert "belongs to tenant 'globex', not 'initech'" in found["initech.db"]["problems"][0]
    assert not found[tq.file_of(LONG).name]["ok"]
    assert "BAD  acme" in tq("verify", "acme", "globex", status=1).stdout


def test_verify_tells_what_is_no_file_or_not_ours(tq: StoreCommand, tmp_path: Path) -> None:
    tq.path.mkdir()
    text = tmp_path / "text.db"
    text.write_text("no database")
    lines = tq.json_lines("verify", "acme", str(text), status=1)
    assert lines[0]["problems"] == ["there is no such file, and no such tenant"]
    assert "is not a SQLite database" in lines[1]["problems"][0]
    assert text.read_text() == "no database"
    assert "there is no such file" in run("verify", "/no/such.db", status=1).stdout


@pytest.mark.parametrize("targets", [[], ["acme", "--all"]])
def test_verify_wants_targets_or_all(tq: StoreCommand, targets: list[str]) -> None:
    assert "give tenants and paths, or --all" in tq("verify", *targets, status=2).stderr
    assert "no store is given" in run("verify", "--all", status=2).stderr


def test_a_backup_becomes_another_tenant_at_rest(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    copy = tmp_path / "copy.db"
    tq("backup", "acme", str(copy))
    document = tq.json("restore", "acme", str(copy), "--as", "acme-before")
    assert (document["tenant"], document["replaced"]) == ("acme-before", False)
    assert tq.claim("acme-before", "jobs") == []
    assert tq.json("stats", "acme-before")["ready"] == 1
    assert "exists" in tq("restore", "acme", str(copy), "--as", "acme-before", status=1).stderr


def test_a_restore_can_wait_and_ask_for_the_tenant(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    copy = tmp_path / "copy.db"
    tq("backup", "acme", str(copy))
    holder = """
        tenant = tenantq.open(sys.argv[1]).tenant("acme")
        tenant.ack(*tenant.claim("jobs"))
        say("open")
        say(*[message.payload for message in tenant.claim("jobs", wait=60)])
    """
    with Child(holder, tq.path) as child:
        assert child.heard() == "open"
        assert "has tenant 'acme' open" in tq("restore", "acme", str(copy), "--yes", status=3).stderr
        tq("restore", "acme", str(copy), "--yes", "--evict", "--wait", "30")
        assert child.heard() == "1"


def test_salvage_tells_what_it_found_and_what_is_lost(tq: StoreCommand, tmp_path: Path) -> None:
    tq.enqueue("acme", "jobs", *["x" * 3000] * 50)
    source, dest = tq.file_of("acme"), tmp_path / "salvaged.db"
    result = tq("salvage", str(source), str(dest))
    assert result.stdout == f"acme: 50 messages, 0 dead, 0 in the outbox, 0 undeliverable, in {dest}\n"
    assert "exists" in tq("salvage", str(source), str(dest), status=3).stderr
    broken = tmp_path / "broken.db"
    content = bytearray(source.read_bytes())
    content[-20 * 4096 : -10 * 4096] = bytes(10 * 4096)
    broken.write_bytes(content)
    dest.unlink()
    result = tq("salvage", str(broken), str(dest), status=1)
    assert "messages are missing" in result.stdout
    assert "of queue: page" in result.stdout
    dest.unlink()
    document = tq.json("salvage", str(broken), str(dest), "--tenant", "acme", status=1)
    assert document["is_complete"] is False
    assert document["messages"] + document["queues"][0]["missing"] == 50
    other = StoreCommand(tmp_path / "other")
    other("restore", "acme", str(dest))
    assert other.json("stats", "acme")["ready"] == document["messages"]


def test_a_tenant_is_restored_out_of_a_backup_directory(tq: StoreCommand, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    for number in (1, 2):
        tq.enqueue("acme", "jobs", number)
        tq("backup", "--all", str(copies))
    tq.enqueue("acme", "jobs", 3)
    first, second = tenantq.BackupDirectory(copies).backups("acme")
    for options, expected in (
        ([], 2),
        (["--generation", first.generation], 1),
        (["--timestamp", first.taken_at.isoformat()], 1),
    ):
        tq("restore", "acme", str(copies), "--yes", *options)
        assert tq.json("stats", "acme")["ready"] == expected
    assert "no such backup" in tq("restore", "acme", str(copies), "--generation", "x", status=1).stderr
    assert "no such backup" in tq("restore", "globex", str(copies), status=1).stderr
    assert "ISO 8601" in tq("restore", "acme", str(copies), "--timestamp", "noon", status=2).stderr
    assert "backup directory" in tq("restore", "acme", str(first.path), "--generation", "x", status=2).stderr
    content = bytearray(second.path.read_bytes())
    content[-1] ^= 1
    second.path.write_bytes(content)
    assert "is not as it was taken" in tq("restore", "acme", str(copies), status=3).stderr
    assert tq.json("stats", "acme")["ready"] == 1
