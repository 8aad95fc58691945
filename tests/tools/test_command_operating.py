"""What an operator looks at and does: tenants, stats, peek, dead letters, pause, reap, purge, delete."""

from __future__ import annotations

import base64
import os
import pty
import sqlite3
from pathlib import Path

import pytest

import tenantq
from tests.tools.command import StoreCommand, read_all, spawn

HOSTILE = "b\u202etxt.exe/../x [red]"

READING = [
    ("tenants",),
    ("tenants", "--long"),
    ("stats",),
    ("stats", "acme"),
    ("peek", "acme", "jobs"),
    ("dead", "list", "acme"),
    ("path", "acme"),
    ("verify", "--all"),
    ("verify", "acme"),
    ("backup", "acme", "/nowhere/x.db"),
    ("backup", "--all", "/nowhere"),
    ("dead", "redrive", "acme", "--all"),
    ("dead", "purge", "acme", "--all", "--yes"),
    ("pause", "acme", "jobs"),
    ("resume", "acme", "jobs"),
    ("limit", "acme", "jobs", "--max-depth", "5"),
    ("reap", "acme"),
    ("purge", "acme", "jobs", "--yes"),
    ("delete", "acme", "--yes"),
]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(
    tq: StoreCommand, arguments: tuple[str, ...]
) -> None:
    result = tq(*arguments, status=3)
    assert result.stderr.startswith("tenantq: error: there is no store at ")
    assert "hint: check --store or TENANTQ_STORE" in result.stderr
    assert not tq.path.exists()


@pytest.mark.parametrize(
    "arguments",
    [arguments for arguments in READING if "acme" in arguments and arguments[0] != "verify"],
    ids=" ".join,
)
def test_a_tenant_that_is_not_there_is_an_error_and_is_not_made(
    tq: StoreCommand, arguments: tuple[str, ...]
) -> None:
    tq.enqueue("globex", "jobs", 1)
    result = tq(*arguments, status=1)
    assert "tenantq: error: the store has no tenant 'acme'" in result.stderr
    assert "hint: `tenantq tenants` lists those that there are" in result.stderr
    assert tq("tenants").stdout == "globex\n"


def test_stats_warn_of_a_wal_that_no_checkpoint_can_shorten(
    tq: StoreCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenantq.stats, "BLOCKED_PAGES", 1)
    with tenantq.open(tq.path) as store:
        store.tenant("acme").enqueue("jobs", 1)
        for arguments in (("stats",), ("stats", "acme")):
            assert "tenantq: warning: acme: a reader keeps " in tq(*arguments).stderr
        (warning,) = tq.json("stats", "acme")["warnings"]
    assert "from being checkpointed" in warning
    assert tq.json("stats", "acme")["warnings"] == []


@pytest.mark.parametrize("arguments", [("stats", "a\nb"), ("peek", "a\nb", "jobs"), ("delete", "", "--yes")])
def test_what_is_no_id_is_wrong_usage(tq: StoreCommand, arguments: tuple[str, ...]) -> None:
    tq.path.mkdir()
    assert "tenant id" in tq(*arguments, status=2).stderr


@pytest.mark.parametrize("arguments", [("stats", "acme"), ("peek", "acme", "jobs"), ("pause", "acme", "jobs")])
def test_a_file_that_is_not_ours_is_an_error_of_the_store_and_is_left_alone(
    tq: StoreCommand, arguments: tuple[str, ...]
) -> None:
    path = tq.file_of("acme")
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = path.read_bytes()
    result = tq(*arguments, status=3)
    assert "is not a tenantq tenant file" in result.stderr
    assert "hint: check the path; the file was left as it is" in result.stderr
    assert path.read_bytes() == before


def test_tenants_are_listed_one_a_line_and_exactly_in_json(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    tq.enqueue(HOSTILE, "jobs", 1)
    tq.kill(HOSTILE, "jobs")
    shown = tq("tenants").stdout.splitlines()
    assert sorted(shown) == ["acme", "b\\u202etxt.exe/../x [red]"]
    assert sorted(line["tenant"] for line in tq.json_lines("tenants")) == ["acme", HOSTILE]
    long = {line.pop("tenant"): line for line in tq.json_lines("tenants", "--long")}
    assert (long["acme"]["ready"], long[HOSTILE]["dead"]) == (2, 1)
    table = tq("tenants", "--long").stdout.splitlines()
    assert table[0].split()[0] == "READY"
    assert "\x1b" not in "".join(table)


def test_json_is_ascii_whatever_is_in_it(tq: StoreCommand) -> None:
    tq.enqueue("Zoë 🦆\u2028", "jobs", "\x7f\u202e🦆")
    result = tq("peek", "Zoë 🦆\u2028", "jobs", "--json")
    assert result.stdout.isascii()
    assert result.stdout.strip().isprintable()
    (line,) = tq.json_lines("peek", "Zoë 🦆\u2028", "jobs")
    assert (line["tenant"], line["payload"]) == ("Zoë 🦆\u2028", "\x7f\u202e🦆")


def test_stats_of_a_tenant_show_its_queues(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    tq.enqueue("acme", "later", 1, delay=3600)
    tq("pause", "acme", "jobs")
    document = tq.json("stats", "acme")
    assert (document["tenant"], document["ready"], document["scheduled"]) == ("acme", 2, 1)
    assert document["file_bytes"] > 0
    assert {row["queue"]: (row["ready"], row["scheduled"], row["is_paused"]) for row in document["queues"]} == {
        "jobs": (2, 0, True),
        "later": (0, 1, False),
    }
    shown = tq("stats", "acme").stdout.splitlines()
    assert shown[-2].split()[-2:] == ["yes", "jobs"]
    assert shown[-1].split()[-2:] == ["-", "later"]


def test_stats_of_all_sum_up_and_name_what_cannot_be_read(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    tq.enqueue("globex", "jobs", 3)
    document = tq.json("stats")
    assert (document["totals"]["count"], document["totals"]["ready"]) == (2, 3)
    assert sorted(row["tenant"] for row in document["tenants"]) == ["acme", "globex"]
    assert tq("stats").stdout.splitlines()[-1].endswith("total of 2 tenants")
    tq.file_of("acme").write_bytes(b"nothing of ours" * 1000)
    stray = tq.file_of("globex").with_name("UPPER.db")
    stray.write_bytes(b"")
    result = tq("stats", status=1)
    assert "acme.db is not a SQLite database" in result.stderr
    assert "UPPER.db is no tenant's file, or cannot be read" in result.stderr
    assert tq.json("stats", status=1)["totals"] | {"file_bytes": 0, "oldest_age": 0} == {
        "count": 1,
        "ready": 1,
        "scheduled": 0,
        "claimed": 0,
        "dead": 0,
        "outbox": 0,
        "oldest_age": 0,
        "file_bytes": 0,
        "wal_bytes": 0,
        "unreadable": 2,
    }
    named = {entry["error"]: entry for entry in tq.json("stats", status=1)["unreadable"]}
    assert named["NotATenantFile"]["message"]
    assert len(tq.json("stats", status=1)["unreadable"]) == 2


@pytest.mark.parametrize("settings", [{}, {"NO_COLOR": "1"}])
def test_colours_are_for_terminals_and_those_who_want_them(tq: StoreCommand, settings: dict[str, str]) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq.kill("acme", "jobs")
    terminal, end = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | settings
    process = spawn("stats", "--store", str(tq.path), stdout=end, env=environment)
    os.close(end)
    shown = read_all(terminal)
    process.communicate()
    assert b"total of 1 tenants" in shown
    assert (b"\x1b[31m" in shown) is not bool(settings)


def test_a_store_without_tenants_is_no_error(tq: StoreCommand) -> None:
    tq.path.mkdir()
    assert tq("tenants").stdout == ""
    assert tq.json("stats")["totals"]["count"] == 0
    assert tq.json_lines("verify", "--all") == []
    assert list(tq.path.iterdir()) == []


def test_peek_shows_what_waits_and_claims_nothing(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", {"n": 1}, b"\x00\xff" * 200, "x" * 500, "a\nb\x1b[31m")
    lines = tq.json_lines("peek", "acme", "jobs")
    assert [line["id"] for line in lines] == [1, 2, 3, 4]
    assert [line["attempts"] for line in lines] == [0, 0, 0, 0]
    assert lines[0]["payload"] == {"n": 1}
    assert base64.b64decode(lines[1]["payload_base64"]) == b"\x00\xff" * 200
    assert lines[2]["payload"] == "x" * 500
    shown = tq("peek", "acme", "jobs", "--width", "20").stdout.splitlines()
    assert shown[1].endswith('{"n":1}')
    assert shown[2].endswith("<400 bytes> 00ff00ff00ff00ff00ff...")
    assert shown[3].endswith('"xxxxxxxxxxxxxxxxxxx... (502 characters)')
    assert shown[4].endswith('a\\nb\\u001b[31m"')
    assert len(tq.json_lines("peek", "acme", "jobs", "--limit", "2")) == 2
    assert "Nothing waits in queue other." in tq("peek", "acme", "other").stderr
    assert tq.json("stats", "acme")["ready"] == 4


def test_peek_keeps_numbers_and_shows_text_that_is_no_json(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 123456789012345678901234567890, 2)
    with sqlite3.connect(tq.file_of("acme")) as connection:
        connection.execute("UPDATE queue SET payload = 'not\njson' WHERE id = 2")
    connection.close()
    first, second = tq.json_lines("peek", "acme", "jobs")
    assert first["payload"] == 123456789012345678901234567890
    assert second["payload_text"] == "not\njson"
    assert tq("peek", "acme", "jobs").stdout.splitlines()[2].endswith("not\\njson")


def test_dead_letters_are_listed_with_their_errors(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", {"n": 1})
    tq.kill("acme", "jobs", "ValueError: no\nsuch \x1b[31m user")
    (letter,) = tq.json_lines("dead", "list", "acme")
    assert (letter["id"], letter["queue"], letter["payload"]) == (1, "jobs", {"n": 1})
    assert letter["error"] == "ValueError: no\nsuch \x1b[31m user"
    shown = tq("dead", "list", "acme", "--queue", "jobs").stdout.splitlines()
    assert len(shown) == 2
    assert "no\\nsuch \\x1b[31m user" in shown[1]
    assert "no dead letters" in tq("dead", "list", "acme", "--queue", "other").stderr


def test_dead_letters_are_redriven_by_id_by_queue_and_all(tq: StoreCommand) -> None:
    for queue in ("a", "b", "c"):
        tq.enqueue("acme", queue, 1, 2)
        tq.kill("acme", queue)
    assert tq.json("dead", "redrive", "acme", "1")["redriven"] == 1
    result = tq("dead", "redrive", "acme", "2", "999", status=1)
    assert "acme: 1 redriven" in result.stdout
    assert "1 were not" in result.stderr
    assert tq.json("dead", "redrive", "acme", "--queue", "b") == {"tenant": "acme", "queue": "b", "redriven": 2}
    assert tq.json("dead", "redrive", "acme", "--all")["redriven"] == 2
    assert tq.json("stats", "acme")["ready"] == 6


@pytest.mark.parametrize("options", [[], ["1", "--all"], ["--queue", "a", "--all"], ["1", "--queue", "a"]])
def test_redrive_wants_to_be_told_which(tq: StoreCommand, options: list[str]) -> None:
    assert "give one of IDs, --queue Q or --all" in tq("dead", "redrive", "acme", *options, status=2).stderr


def test_what_removes_asks_first(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    tq.kill("acme", "jobs")
    tq.enqueue("acme", "jobs", 3)
    for arguments, question in [
        (("dead", "purge", "acme", "--all"), "Remove 2 dead letters of tenant acme?"),
        (
            ("purge", "acme", "jobs"),
            "Remove 1 messages that wait and 0 claimed ones from queue jobs of tenant acme?",
        ),
        (("delete", "acme"), "Delete tenant acme and its 1 messages, 2 dead letters and 0 events not forwarded?"),
    ]:
        for answer in ("n\n", ""):
            result = tq(*arguments, input=answer, status=1)
            assert question in result.stderr
            assert "Nothing was done." in result.stderr
    held = tq.json("stats", "acme")
    assert (held["ready"], held["dead"]) == (1, 2)
    assert "2 dead letters removed" in tq("dead", "purge", "acme", "--queue", "jobs", input="y\n").stdout
    assert tq.json("purge", "acme", "jobs", "--yes") == {"tenant": "acme", "queue": "jobs", "purged": 1}
    assert tq.json("delete", "acme", "--yes")["deleted"] is True
    assert tq("tenants").stdout == ""
    assert not tq.file_of("acme").exists()


def test_a_tenant_whose_file_cannot_be_read_can_be_deleted(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq.file_of("acme").write_bytes(b"nothing of ours" * 1000)
    result = tq("delete", "acme", input="y\n")
    assert "its file, which cannot be read" in result.stderr
    assert tq("tenants").stdout == ""


def test_a_paused_queue_gives_nothing_until_it_is_resumed(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1)
    assert tq("pause", "acme", "jobs").stdout == "acme: queue jobs is paused\n"
    assert tq.claim("acme", "jobs") == []
    assert tq.json("resume", "acme", "jobs") == {"tenant": "acme", "queue": "jobs", "paused": False}
    assert len(tq.claim("acme", "jobs")) == 1


def test_a_bound_refuses_what_is_over_it_until_it_is_removed(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1)
    limit = ("limit", "acme", "jobs", "--max-depth")
    assert tq.json(*limit, "1") == {"tenant": "acme", "queue": "jobs", "max_depth": 1}
    assert [row["max_depth"] for row in tq.json("stats", "acme")["queues"]] == [1]
    refused = tq("enqueue", "acme", "jobs", "2", status=1)
    assert "queue 'jobs' of tenant 'acme' is full: it holds 1 of 1 messages" in refused.stderr
    assert "hint: wait until messages are handled, or raise the bound" in refused.stderr
    assert tq(*limit, "none").stdout == "acme: queue jobs: no bound\n"
    assert tq("limit", "acme", "--max-depth", "2").stdout == "acme: all queues together: at most 2\n"
    assert tq.json("stats", "acme")["max_depth"] == 2
    tq("enqueue", "acme", "jobs", "2")
    assert "tenant 'acme' is full" in tq("enqueue", "acme", "other", "3", status=1).stderr


@pytest.mark.parametrize("bound", ["0", "-1", "many", ""])
def test_what_is_no_bound_is_wrong_usage(tq: StoreCommand, bound: str) -> None:
    tq.enqueue("acme", "jobs", 1)
    assert tq("limit", "acme", "jobs", "--max-depth", bound, status=2).stderr
    assert tq.json("stats", "acme")["queues"][0]["max_depth"] is None


def test_reap_takes_expired_leases_back(tq: StoreCommand) -> None:
    with tenantq.open(tq.path) as store:
        store.tenant("acme").enqueue("jobs", 1)
        store.tenant("acme").claim("jobs", lease=1e-9)  # over before it can be looked at
    assert tq("reap", "acme").stdout == "acme: 1 leases taken back\n"
    assert tq.json("reap", "acme") == {"tenant": "acme", "reaped": 0}


def test_a_path_leads_to_the_file(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", 1)
    path = Path(tq("path", "acme").stdout.rstrip("\n"))
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert connection.execute("SELECT count(*) FROM queue").fetchone() == (1,)
    connection.close()
    assert tq.json("path", "acme") == {"tenant": "acme", "path": str(path)}


def test_a_store_that_may_not_be_written_says_so(tq: StoreCommand) -> None:
    tq.path.write_text("a file, not a directory")
    assert "there is no store at" in tq("tenants", status=3).stderr
    assert "cannot be made" in tq("enqueue", "acme", "jobs", "1", status=3).stderr
    assert os.path.isfile(tq.path)  # noqa: PTH113


def test_limits_of_claims_are_set_told_and_shown(tq: StoreCommand) -> None:
    tq("enqueue", "acme", "jobs", "1")
    limits = ("limit", "acme", "jobs", "--rate", "3", "--per", "60", "--max-claimed", "2")
    assert tq(*limits).stdout == "acme: queue jobs: at most 2 claimed at once, at most 3 claimed in 60 s\n"
    assert tq.json("limit", "acme", "--weight", "2.5") == {"tenant": "acme", "queue": None, "weight": 2.5}
    document = tq.json("stats", "acme")
    (jobs,) = document["queues"]
    assert (jobs["max_claimed"], jobs["rate"], jobs["per"], jobs["max_depth"]) == (2, 3, 60.0, None)
    assert document["weight"] == 2.5
    shown = tq("stats", "acme").stdout
    assert "2 at once, 3 in 60 s" in shown
    assert "all queues together: weight 2.5" in shown
    assert tq("limit", "acme", "jobs", "--rate", "none").stdout == "acme: queue jobs: no rate\n"
    assert tq.json("stats", "acme")["queues"][0]["max_claimed"] == 2


@pytest.mark.parametrize("options", [(), ("--per", "60"), ("--rate", "fast"), ("--weight", "-1"), ("--rate", "0")])
def test_a_limit_that_is_none_is_refused(tq: StoreCommand, options: tuple[str, ...]) -> None:
    tq("enqueue", "acme", "jobs", "1")
    assert tq("limit", "acme", *options, status=2).stderr
