"""`tenantq enqueue`: one message, or lines, all or the good ones, and never half a line."""

from __future__ import annotations

import json
import os
import pty
import signal
from pathlib import Path
from typing import Any

import pytest

from tenantq_tools.cli import _batches
from tests.tools.command import StoreCommand, read_all, run, spawn

HOSTILE = ["../../etc/passwd", "acme\u202egnp", "ACME", "Ünïcødé/..", "-rf", "a" * 128, "🦆" * 40, "[red]x[/red]"]


def lines(*objects: object) -> str:
    return "".join(json.dumps(line) + "\n" for line in objects)


def job(tenant: str, number: int, **fields: object) -> dict[str, object]:
    return {"tenant": tenant, "queue": "jobs", "payload": {"n": number}, **fields}


def numbers(tq: StoreCommand, tenant: str) -> list[int]:
    return [message.payload["n"] for message in tq.claim(tenant, "jobs")]


# One message


def test_a_message_is_enqueued_and_its_id_told(tq: StoreCommand) -> None:
    document = tq.json("enqueue", "acme", "report.build", '{"month": "2026-11"}')
    assert document == {"tenant": "acme", "queue": "report.build", "id": 1}
    (message,) = tq.claim("acme", "report.build")
    assert message.payload == {"month": "2026-11"}
    assert "message 2 is in queue report.build" in tq("enqueue", "acme", "report.build", "1").stdout


def test_the_options_are_those_of_the_library(tq: StoreCommand) -> None:
    tq("enqueue", "acme", "jobs", "1", "--priority", "7", "--key", "k", "--max-attempts", "3")
    again = tq.json("enqueue", "acme", "jobs", "2", "--key", "k")
    assert again["id"] == 1
    (message,) = tq.claim("acme", "jobs")
    assert (message.priority, message.key, message.max_attempts, message.payload) == (7, "k", 3, 1)


@pytest.mark.parametrize("options", [["--delay", "3600"], ["--at", "2250-01-01T00:00:00Z"]])
def test_a_message_for_later_is_scheduled(tq: StoreCommand, options: list[str]) -> None:
    tq("enqueue", "acme", "jobs", "1", *options)
    assert tq.json("stats", "acme")["scheduled"] == 1


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        (["null"], None),
        (['"text"'], "text"),
        (["--", "-5"], -5),
        (["--text", "call Ada"], "call Ada"),
        (["--text", "42"], "42"),
        (["--raw", "plain"], b"plain"),
    ],
)
def test_a_payload_is_json_text_or_bytes_as_told(tq: StoreCommand, arguments: list[str], payload: object) -> None:
    *options, argument = arguments
    tq("enqueue", *[o for o in options if o != "--"], "--", "acme", "jobs", argument)
    assert [message.payload for message in tq.claim("acme", "jobs")] == [payload]


@pytest.mark.parametrize(
    ("options", "data", "payload"),
    [([], b'{"a": 1}\n', {"a": 1}), (["--text"], b"a\nb\n", "a\nb\n"), (["--raw"], b"\x00\xff", b"\x00\xff")],
)
def test_a_payload_can_come_from_standard_input(
    tq: StoreCommand, options: list[str], data: bytes, payload: object
) -> None:
    tq("enqueue", "acme", "jobs", "-", *options, input=data)
    assert [message.payload for message in tq.claim("acme", "jobs")] == [payload]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["acme", "jobs", "{month: 1}"], "hint: --text sends text as a JSON string"),
        (["acme", "jobs", '"\\ud800"'], "the payload is not JSON"),
        (["acme", "jobs", "1e999"], "the payload is not JSON"),
        (["acme", "jobs", "1", "--delay", "-1"], "delay -1.0 is not within"),
        (["acme", "jobs", "1", "--delay", "nan"], "delay nan is not within"),
        (["acme", "jobs", "1", "--at", "tomorrow"], "is not a time in ISO 8601"),
        (["acme", "jobs", "1", "--at", "2026-11-30T08:00:00"], "has no time zone"),
        (["acme", "jobs", "1", "--at", "2026-11-30T08:00:00Z", "--delay", "1"], "either delay or at"),
        (["acme", "jobs", "1", "--priority", "99999"], "priority 99999 is not"),
        (["acme", "jobs", "1", "--max-attempts", "0"], "max_attempts 0 is not"),
        (["acme", "", "1"], "queue name '' is empty"),
        (["a\nb", "jobs", "1"], "has a control character"),
        (["acme", "jobs"], "give TENANT QUEUE PAYLOAD"),
        (["acme", "jobs", "1", "--text", "--raw"], "either --text or --raw"),
        (["acme", "jobs", "1", "--file", "-"], "--file takes neither"),
        (["--file", "-", "--tenant", ""], "tenant id '' is empty"),
        (["--file", "/no/such/file"], "No such file"),
    ],
)
def test_what_is_wrong_is_said_and_makes_no_store(tq: StoreCommand, arguments: list[str], said: str) -> None:
    result = tq("enqueue", *arguments, status=2)
    assert said in result.stderr
    assert not tq.path.exists()


@pytest.mark.parametrize("tenant", HOSTILE)
def test_any_id_is_taken_and_printed_on_one_harmless_line(tq: StoreCommand, tenant: str) -> None:
    result = tq("enqueue", "--", tenant, "jobs", "1")
    assert len(result.stdout.splitlines()) == 1
    assert "\u202e" not in result.stdout
    assert [line["tenant"] for line in tq.json_lines("tenants")] == [tenant]
    assert "\u202e" not in tq("tenants", "--long").stdout
    assert [message.payload for message in tq.claim(tenant, "jobs")] == [1]


def test_an_unknown_tenant_is_refused_where_only_existing_ones_are_meant(tq: StoreCommand) -> None:
    assert "there is no store" in tq("enqueue", "acme", "jobs", "1", "--existing", status=3).stderr
    tq.enqueue("acme", "jobs", 1)
    assert "hint: `tenantq tenants` lists" in tq("enqueue", "acmee", "jobs", "1", "--existing", status=1).stderr
    assert tq.json("enqueue", "acme", "jobs", "1", "--existing")["id"] == 2
    assert tq("tenants").stdout == "acme\n"


# Lines


def test_each_line_goes_to_its_tenant_and_queue_in_order(tq: StoreCommand, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(lines(job("acme", 1), job("globex", 2), job("acme", 3)))
    document = tq.json("enqueue", "--file", str(file))
    assert document == {
        "lines": 3,
        "enqueued": 3,
        "known": 0,
        "refused": 0,
        "stopped": False,
        "counts": [
            {"tenant": "acme", "queue": "jobs", "enqueued": 2, "known": 0},
            {"tenant": "globex", "queue": "jobs", "enqueued": 1, "known": 0},
        ],
        "problems": [],
    }
    assert numbers(tq, "acme") == [1, 3]
    assert numbers(tq, "globex") == [2]


def test_other_fields_can_name_tenant_queue_and_payload(tq: StoreCommand) -> None:
    line = {"shop": "acme", "event": "order.paid", "body": [1, {"ä": None}], "payload": "not this"}
    fields = ["--tenant-field", "shop", "--queue-field", "event", "--payload-field", "body"]
    result = tq("enqueue", "--file", "-", *fields, input=lines(line))
    assert "1 enqueued, 0 known by their keys, 0 lines refused" in result.stdout
    assert [message.payload for message in tq.claim("acme", "order.paid")] == [[1, {"ä": None}]]


def test_fixed_values_stand_for_what_a_line_does_not_name(tq: StoreCommand) -> None:
    given = ["--tenant", "acme", "--queue", "jobs", "--priority", "5", "--delay", "0"]
    tq("enqueue", "--file", "-", *given, input=lines({"payload": 1}, job("globex", 2, priority=6)))
    (first,), (second,) = tq.claim("acme", "jobs"), tq.claim("globex", "jobs")
    assert (first.payload, first.priority, second.priority) == (1, 5, 6)


def test_a_lines_options_are_its_messages(tq: StoreCommand) -> None:
    options = {"priority": 3, "key": "k", "max_attempts": 2, "headers": {"trace": "é"}}
    text = lines(
        job("acme", 1, **options),
        job("acme", 2, key="k"),
        job("acme", 3, delay=3600),
        job("acme", 4, at="2250-01-01T00:00:00+01:00", delay=None),
    )
    document = tq.json("enqueue", "--file", "-", "--delay", "0.0", input=text)
    assert (document["enqueued"], document["known"]) == (3, 1)
    assert tq.json("stats", "acme")["scheduled"] == 2
    (message,) = tq.claim("acme", "jobs")
    assert (message.priority, message.key, message.max_attempts, message.headers) == (3, "k", 2, {"trace": "é"})


def test_a_key_that_waits_already_is_counted_as_known_and_not_as_enqueued(tq: StoreCommand) -> None:
    text = lines(*[job("acme", n, key=f"k{n}") for n in range(5)])
    tq("enqueue", "--file", "-", input=text)
    again = tq.json("enqueue", "--file", "-", input=text + lines(job("acme", 9)))
    assert (again["enqueued"], again["known"]) == (1, 5)


def test_bare_takes_no_options_from_other_fields(tq: StoreCommand) -> None:
    text = lines(job("acme", 1, priority="high", key="same"), job("acme", 2, delay="late", key="same"))
    assert tq.json("enqueue", "--file", "-", "--bare", input=text)["enqueued"] == 2
    assert tq.json("enqueue", "--file", "-", input=text, status=1)["refused"] == 2


@pytest.mark.parametrize(
    "text", ["", "\n\n", "\ufeff" + lines(job("acme", 1)), "\n" + lines(job("acme", 1)).strip()]
)
def test_empty_lines_marks_and_a_missing_last_line_end_are_no_fault(tq: StoreCommand, text: str) -> None:
    document = tq.json("enqueue", "--file", "-", input=text.encode())
    assert document["refused"] == 0
    assert document["enqueued"] == text.count("acme")


def test_line_ends_of_windows_are_no_fault(tq: StoreCommand) -> None:
    text = lines(job("acme", 1), job("acme", 2)).replace("\n", "\r\n")
    assert tq.json("enqueue", "--file", "-", input=text)["enqueued"] == 2


BAD: list[tuple[bytes, str]] = [
    (b"{not json}", "the line is not JSON"),
    (b"\xff\xfe", "the line is not JSON"),
    (b"[1, 2]", "the line is not a JSON object"),
    (b'{"queue": "jobs", "payload": 1}', "the line has no field 'tenant', and --tenant is not given"),
    (b'{"tenant": "acme", "payload": 1}', "the line has no field 'queue', and --queue is not given"),
    (b'{"tenant": "acme", "queue": "jobs"}', "the line has no field 'payload'"),
    (b'{"tenant": "a\\nb", "queue": "jobs", "payload": 1}', "has a control character"),
    (b'{"tenant": 42, "queue": "jobs", "payload": 1}', "is a int, not a str"),
    (b'{"tenant": "acme", "queue": "", "payload": 1}', "queue name '' is empty"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1, "delay": "soon"}', "not a number of seconds"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1, "priority": 1.5}', "priority 1.5 is not"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1, "max_attempts": 0}', "max_attempts 0 is not"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1, "headers": {"a": 1}}', "is not a str"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1, "key": 7}', "key 7 is a int"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1, "at": 7}', "7 is not a time in ISO 8601"),
    (b'{"tenant": "acme", "queue": "jobs", "payload": 1e999}', "the line is not JSON"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_is_named_with_its_reason_and_refuses_all(tq: StoreCommand, bad: bytes, reason: str) -> None:
    text = lines(job("acme", 1)).encode() + b"\n" + bad + b"\n" + lines(job("acme", 2)).encode()
    document = tq.json("enqueue", "--file", "-", input=text, status=1)
    assert (document["lines"], document["enqueued"], document["refused"]) == (4, 0, 1)
    assert document["problems"][0]["line"] == 3
    assert reason in document["problems"][0]["reason"]
    assert not tq.path.exists()


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_leaves_the_good_ones_where_they_are_kept(tq: StoreCommand, bad: bytes, reason: str) -> None:
    text = lines(job("acme", 1)).encode() + bad + b"\n" + lines(job("acme", 2)).encode()
    result = tq("enqueue", "--file", "-", "--on-error", "keep", input=text, status=1)
    assert "line 2: " in result.stderr
    assert reason in result.stderr
    assert "2 enqueued" in result.stdout
    assert numbers(tq, "acme") == [1, 2]


def test_refused_lines_can_be_mended_and_given_again(tq: StoreCommand, tmp_path: Path) -> None:
    rejects = tmp_path / "bad.jsonl"
    text = lines(job("acme", 1), job("", 2), job("acme", 3), job("acme", 4, priority="x"))
    tq("enqueue", "--file", "-", "--on-error", "keep", "--rejects", str(rejects), input=text, status=1)
    assert rejects.read_text() == lines(job("", 2), job("acme", 4, priority="x"))
    mended = rejects.read_text().replace('"tenant": ""', '"tenant": "acme"').replace('"x"', "1")
    tq("enqueue", "--file", "-", input=mended)
    assert sorted(numbers(tq, "acme")) == [1, 2, 3, 4]


def test_more_lines_than_a_batch_keep_their_order(tq: StoreCommand, tmp_path: Path) -> None:
    count = 2 * _batches.BATCH_MESSAGES + 3
    file = tmp_path / "jobs.jsonl"
    file.write_text(lines(*[job("acme", number) for number in range(count)]))
    assert tq.json("enqueue", "--file", str(file))["enqueued"] == count
    with_limit = tq.claim("acme", "jobs", count + 1)
    assert [message.payload["n"] for message in with_limit] == list(range(count))


def test_what_all_tenants_hold_back_is_bounded(tq: StoreCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[int] = []
    enqueue = _batches._enqueue

    def spy(tenant: Any, entries: Any) -> list[bool]:
        committed.append(len(entries))
        return enqueue(tenant, entries)

    monkeypatch.setattr(_batches, "_enqueue", spy)
    monkeypatch.setattr(_batches, "MAX_MESSAGES", 4)
    text = lines(*[job(f"t{number % 3}", number) for number in range(10)])
    assert tq.json("enqueue", "--file", "-", input=text)["enqueued"] == 10
    assert sum(committed) == 10
    assert max(committed) == 2


def test_one_tenants_fault_keeps_no_other_from_its_lines(tq: StoreCommand) -> None:
    tq.enqueue("broken", "jobs", {"n": 0})
    tq.file_of("broken").write_bytes(b"this is no database" * 1000)
    text = lines(job("broken", 1), job("acme", 2), job("broken", 3))
    kept = tq.json("enqueue", "--file", "-", "--on-error", "keep", input=text, status=1)
    assert (kept["enqueued"], [problem["line"] for problem in kept["problems"]]) == (1, [1, 3])
    assert numbers(tq, "acme") == [2]
    refused = tq.json("enqueue", "--file", "-", input=text, status=1)
    assert refused["enqueued"] == 0


def test_unknown_tenants_of_lines_are_named_where_only_existing_ones_are_meant(tq: StoreCommand) -> None:
    tq.enqueue("acme", "jobs", {"n": 0})
    text = lines(job("acme", 1), job("acmee", 2))
    result = tq("enqueue", "--file", "-", "--existing", input=text, status=1)
    assert "line 2: the store has no tenant 'acmee'" in result.stderr
    assert numbers(tq, "acme") == [0]
    assert tq("tenants").stdout == "acme\n"


def test_a_real_file_and_a_real_pipe_are_read_alike(tq: StoreCommand, tmp_path: Path) -> None:
    text = lines(*[job("acme", number, note="x" * 3000) for number in range(200)])
    process = spawn("enqueue", "--file", "-", "--store", str(tq.path), "--json")
    out, err = process.communicate(text)
    assert (process.returncode, err, json.loads(out)["enqueued"]) == (0, "", 200)
    file = tmp_path / "jobs.jsonl"
    file.write_text(text)
    with file.open() as stdin:
        process = spawn("enqueue", "--file", "-", "--store", str(tq.path), "--json", stdin=stdin)
        out, err = process.communicate()
    assert (process.returncode, err, json.loads(out)["enqueued"]) == (0, "", 200)
    assert sorted(numbers(tq, "acme")) == sorted([*range(200)] * 2)


def test_lines_of_a_pipe_are_enqueued_before_the_next_is_waited_for_and_a_signal_ends_it(tq: StoreCommand) -> None:
    process = spawn("enqueue", "--file", "-", "--on-error", "keep", "--store", str(tq.path))
    assert process.stdin is not None
    process.stdin.write(lines(job("acme", 1)))
    process.stdin.flush()
    assert [message.payload for message in tq.claim("acme", "jobs", wait=30)] == [{"n": 1}]
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, "1 enqueued" in out) == (1, True)
    assert "Stopped after line 1: the lines up to there are done." in err


def test_progress_is_shown_on_a_terminal_and_apart_from_the_result(tq: StoreCommand, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(lines(job("acme", 1)))
    terminal, end = pty.openpty()
    process = spawn("enqueue", "--file", str(file), "--store", str(tq.path), "--json", stderr=end)
    os.close(end)
    shown = read_all(terminal)
    out, _ = process.communicate()
    assert (process.returncode, json.loads(out)["enqueued"]) == (0, 1)
    assert b"enqueueing" in shown


def test_the_store_can_be_named_by_the_environment_and_before_the_command(tq: StoreCommand) -> None:
    run("enqueue", "acme", "jobs", "1", env={"TENANTQ_STORE": str(tq.path)})
    run("--store", str(tq.path), "enqueue", "acme", "jobs", "2", env={"TENANTQ_STORE": "/not/this/one"})
    run("enqueue", "acme", "jobs", "3", "--store", str(tq.path), env={"TENANTQ_STORE": "/not/this/one"})
    assert [message.payload for message in tq.claim("acme", "jobs")] == [1, 2, 3]
    assert "no store is given" in run("enqueue", "acme", "jobs", "1", status=2).stderr
