"""`tenantq worker`: an application's handlers, run and drained by signals, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

import tenantq
from tests.older import make_version_1, version_of
from tests.tools.command import StoreCommand, spawn

APP = """
import sys
import tenantq

def make(store, bridge):
    assert bridge is None
    worker = tenantq.Worker(store, concurrency=1)

    @worker.on("jobs")
    def handle(message):
        print("begun", message.payload, flush=True)
        sys.stdin.readline()

    return worker

def nothing(store, bridge):
    return None

def wants_more(store, bridge, more):
    return None

broken = 42

class Holder:
    make = staticmethod(make)
"""

WITH_STORE = """
import tenantq

worker = tenantq.Worker(tenantq.open({store!r}), name="shop", concurrency=3)

@worker.on("jobs")
def handle(message):
    print("handled", message.payload, flush=True)

@worker.on("bad")
def fail(message):
    raise ValueError("no such order")
"""


@pytest.fixture
def app(tmp_path: Path, tq: StoreCommand) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "whole.py").write_text(WITH_STORE.format(store=str(tq.path)))
    (tmp_path / "faulty.py").write_text("import no_such_dependency\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('no settings')\n")
    return tmp_path


def wait_for(process: subprocess.Popen[str], said: str) -> str:
    """Read its log until a line says it."""
    assert process.stderr is not None
    for line in process.stderr:
        if said in line:
            return line
    raise AssertionError(f"it ended with {process.wait()} and never said {said!r}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tq: StoreCommand, app: Path, number: signal.Signals) -> None:
    tq.enqueue("acme", "jobs", 1, 2, 3)
    process = spawn("worker", "--app", "shop:make", "--store", str(tq.path), cwd=app)
    assert process.stdin is not None
    assert process.stdout is not None
    assert "1 threads on the store" in wait_for(process, "worker ")
    assert process.stdout.readline() == "begun 1\n"
    process.send_signal(number)
    wait_for(process, "draining")
    out, err = process.communicate("go on\n")
    assert (process.returncode, err) == (0, "")
    assert out == "drained: 1 handled\n"
    held = tq.json("stats", "acme")
    assert (held["ready"], held["claimed"]) == (2, 0)
    assert [path.name for path in tq.file_of("acme").parent.iterdir()] == ["acme.db"]


def test_metrics_are_served_and_hold_what_was_handled(tq: StoreCommand, app: Path) -> None:
    tq("enqueue", "acme", "jobs", "1")
    process = spawn("worker", "--app", "shop:make", "--store", str(tq.path), "--metrics", "0", cwd=app)
    url = wait_for(process, "metrics:").split()[-1]
    assert url.startswith("http://127.0.0.1:")
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "begun 1\n"
    process.stdin.write("\n")
    process.stdin.flush()
    wanted = 'tenantq_messages_total{layer="tenant",outcome="handled"} 1.0'
    while wanted not in (text := urlopen(url, timeout=30).read().decode()):
        assert process.poll() is None
    for name in (
        "commits_total",
        "operations_total",
        "busy_waits_total",
        "busy_wait_seconds_total",
        "open_tenants",
        "migrated_files_total",
        "failing_tenants",
    ):
        assert f"\ntenantq_{name} " in text
    process.send_signal(signal.SIGTERM)
    out, _err = process.communicate()
    assert (process.returncode, out) == (0, "drained: 1 handled\n")


@pytest.mark.parametrize("address", ["nowhere", "localhost:", "127.0.0.1:65536", ":"])
def test_an_address_that_is_none_is_told(tq: StoreCommand, app: Path, address: str) -> None:
    tq("enqueue", "acme", "jobs", "1")
    process = spawn("worker", "--app", "shop:make", "--store", str(tq.path), "--metrics", address, cwd=app)
    _out, err = process.communicate()
    assert (process.returncode, "[HOST:]PORT" in err) == (2, True)


def test_a_second_signal_ends_at_once_and_loses_nothing(tq: StoreCommand, app: Path) -> None:
    tq.enqueue("acme", "jobs", 1)
    process = spawn("worker", "--app", "shop:make", "--store", str(tq.path), cwd=app)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun 1\n"
    process.send_signal(signal.SIGTERM)
    wait_for(process, "draining")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130  # while its handler still waits for a line that never comes
    process.communicate()
    assert tq.json("stats", "acme")["claimed"] == 1


def test_an_app_with_a_store_of_its_own_needs_no_option(tq: StoreCommand, app: Path) -> None:
    tq.enqueue("acme", "bad", 7, max_attempts=1)
    tq.enqueue("acme", "jobs", 1)
    process = spawn(
        "worker", "--app", "whole:worker", "--concurrency", "2", "--max-concurrency", "1", "--json", cwd=app
    )
    assert process.stdout is not None
    assert "worker shop: 2 threads, 1 at most for one tenant, on" in wait_for(process, "worker shop")
    logged = wait_for(process, "tenant=")
    assert "tenant='acme' queue='bad' message_id=1" in logged
    assert process.stdout.readline() == "handled 1\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    document = json.loads(out)
    assert (process.returncode, document["worker"], document["counts"]["handled"]) == (0, "shop", 1)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "not of the form module:name"),
        (":make", "not of the form module:name"),
        ("nowhere:worker", "there is no module nowhere, neither in"),
        ("shop.tasks:worker", "there is no module shop.tasks"),
        ("shop:missing", "the module shop has no missing"),
        ("shop:broken", "neither a tenantq.Worker nor a function"),
        ("shop:wants_more", "made no worker: TypeError"),
        ("shop:nothing", "returned None, not a tenantq.Worker"),
        ("faulty:worker", "cannot be imported: ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("raising:worker", "cannot be imported: RuntimeError: no settings"),
    ],
)
def test_an_app_that_is_none_is_told_with_the_reason(tq: StoreCommand, app: Path, target: str, said: str) -> None:
    tq.path.mkdir()
    process = spawn("worker", "--app", target, "--store", str(tq.path), cwd=app)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert said in err.replace("\n", " ")


def test_a_function_needs_a_store_that_is_there(tq: StoreCommand, app: Path) -> None:
    process = spawn("worker", "--app", "shop:make", cwd=app)
    assert "makes a worker for a store: use --store" in process.communicate()[1]
    assert process.returncode == 2
    process = spawn("worker", "--app", "shop:Holder.make", "--store", str(tq.path), cwd=app)
    assert "there is no store at" in process.communicate()[1]
    assert process.returncode == 3
    assert not os.path.exists(tq.path)  # noqa: PTH110


def test_a_worker_that_is_not_to_migrate_says_so_and_leaves_older_files(tq: StoreCommand, app: Path) -> None:
    with tenantq.open(tq.path) as store:
        path = make_version_1(store.tenant("acme").path, "acme")
    process = spawn("worker", "--app", "shop:make", "--store", str(tq.path), "--no-migrate", cwd=app)
    assert "schema version 1" in wait_for(process, "not served by this version")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert version_of(path) == 1
