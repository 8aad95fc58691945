"""`tenantq litestream`: by hand and in processes that are killed, to a directory and to an S3."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tenantq
from tenantq_tools.litestream.binary import Binary
from tests.litestream.conftest import script
from tests.tools.command import StoreCommand, spawn


@pytest.fixture
def tq(tmp_path: Path) -> StoreCommand:
    """The command on a store that is not there yet."""
    return StoreCommand(tmp_path / "store")


@pytest.fixture
def replica(tmp_path: Path) -> str:
    """The URL of a directory."""
    return f"file://{tmp_path}/replica"


def start(tq: StoreCommand, *options: str) -> subprocess.Popen[str]:
    """Start `run`, and wait until Litestream runs."""
    process = spawn("litestream", "run", "--store", str(tq.path), *options)
    assert process.stderr is not None
    for line in process.stderr:
        if "runs as" in line:
            return process
    raise AssertionError(f"it ended with {process.wait()}")


def ready(tq: StoreCommand, tenant: str, queue: str = "jobs") -> list[object]:
    """Return what waits in a queue."""
    with tenantq.open(tq.path) as store:
        return [message.payload for message in store.tenant(tenant).peek(queue, 1000)]


def test_a_sync_is_a_barrier_and_a_lost_host_comes_back(
    tq: StoreCommand, tmp_path: Path, replica: str, binary: Binary
) -> None:
    tq.enqueue("acme", "jobs", 1, 2)
    tq.enqueue("Großkunde & Söhne", "jobs", 3)
    tq("litestream", "config", "--replica", replica)
    document = tq.json("litestream", "sync", "acme")
    assert document["replica"].startswith(replica)
    tq("litestream", "sync", "Großkunde & Söhne")
    assert "acme" not in tq("litestream", "status").stdout
    shutil.rmtree(tq.path)
    for tenant in ("acme", "Großkunde & Söhne"):
        restored = tq.json("litestream", "restore", tenant, "--replica", replica)
        assert restored["replaced"] is False
    assert (ready(tq, "acme"), ready(tq, "Großkunde & Söhne")) == ([1, 2], [3])


def test_a_barrier_beside_a_running_supervisor_that_is_killed_loses_nothing(
    tq: StoreCommand, tmp_path: Path, replica: str, binary: Binary
) -> None:
    tq.enqueue("acme", "jobs", 0)
    process = start(tq, "--replica", replica)
    for number in range(1, 4):
        tq.enqueue("acme", "jobs", number)
        tq("litestream", "sync", "acme")  # what it has acknowledged is off this host
        copy = tmp_path / f"copy-{number}.db"
        tq("litestream", "restore", "acme", "--output", str(copy))
        assert tenantq.verify(copy).ready == number + 1
        process.kill()
        process.communicate()
        process = start(tq)  # ends the Litestream that the other one left, and goes on
    tq.enqueue("acme", "jobs", 4)
    tq("litestream", "sync", "acme")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "stopped" in out
    found = tq.json("litestream", "status", "acme")
    assert (found["state"], found["lag"], found["error"]) == ("replicated", 0.0, None)
    summary = tq.json("litestream", "status")
    assert (summary["supervisor"], summary["counts"]["replicated"], summary["late"]) == ("stopped", 1, [])


def test_a_tenant_is_restored_as_of_a_time(tq: StoreCommand, tmp_path: Path, replica: str, binary: Binary) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq("litestream", "sync", "acme", "--replica", replica)
    before = datetime.now(UTC)
    while datetime.now(UTC).replace(microsecond=0) <= before:  # a replica counts in seconds
        time.sleep(0.05)
    tq.enqueue("acme", "jobs", 2)
    tq("litestream", "sync", "acme", "--replica", replica)
    command = ("litestream", "restore", "acme", "--replica", replica)
    assert "Nothing was done" in tq(*command, input="n\n", status=1).stderr
    assert tq.json(*command, "--timestamp", before.isoformat(), "--yes")["replaced"] is True
    assert ready(tq, "acme") == [1]
    tq(*command, "--yes")
    assert ready(tq, "acme") == [1, 2]
    for wrong, said in (("2001-01-01T00:00:00Z", "nothing of tenant 'acme' as of"), ("yesterday", "is none")):
        tq_status = 2 if wrong == "yesterday" else 1
        assert said in tq(*command, "--timestamp", wrong, "--yes", status=tq_status).stderr
    assert ready(tq, "acme") == [1, 2]


def test_a_restore_that_cannot_be_leaves_the_tenant_as_it_is(
    tq: StoreCommand, tmp_path: Path, replica: str, binary: Binary
) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq.enqueue("globex", "jobs", 2)
    command = ("litestream", "restore", "acme", "--yes", "--replica", replica)
    assert "the replica has nothing of tenant 'acme'" in tq(*command, status=1).stderr
    tq("litestream", "sync", "acme", "--replica", replica)
    with tenantq.open(tq.path) as store:  # another process, as far as a second command is concerned
        store.tenant("acme").enqueue("jobs", 3)
        process = spawn(*command, "--store", str(tq.path))
        _out, err = process.communicate(timeout=60)
        assert (process.returncode, "has tenant 'acme' open" in err) == (3, True), err
        assert store.tenant("acme").stats().ready == 2
    (tmp_path / "there.db").write_text("mine")
    assert "there is a file" in tq(*command, "--output", str(tmp_path / "there.db"), status=1).stderr
    assert (tmp_path / "there.db").read_text() == "mine"
    assert not list(tq.path.glob(".litestream/restore-*"))
    assert ready(tq, "acme") == [1, 3]


def test_a_replica_that_is_gone_is_told_of_by_a_sync_and_mended(
    tq: StoreCommand, tmp_path: Path, replica: str, binary: Binary
) -> None:
    tq.enqueue("acme", "jobs", 1)
    command = ("litestream", "sync", "acme", "--replica", replica)
    tq(*command)
    shutil.rmtree(tmp_path / "replica")
    failed = tq(*command, status=1).stderr
    assert "has nothing of tenant 'acme' any more" in failed
    assert "--snapshot" in failed
    tq(*command, "--snapshot")
    tq("litestream", "restore", "acme", "--yes", "--replica", replica)
    assert ready(tq, "acme") == [1]


def test_an_s3_is_replicated_to_and_restored_from(tq: StoreCommand, bucket: str, binary: Binary) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq("litestream", "config", "--replica", bucket)
    tq("litestream", "sync", "acme")
    process = start(tq)
    tq.enqueue("acme", "jobs", 2)
    tq("litestream", "sync", "acme")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    shutil.rmtree(tq.path)
    tq("litestream", "restore", "acme", "--replica", bucket)
    assert ready(tq, "acme") == [1, 2]


def test_an_s3_without_its_bucket_or_without_credentials_is_told_of(
    tq: StoreCommand, bucket: str, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    tq.enqueue("acme", "jobs", 1)
    missing = bucket.replace("backups", "no-such")
    failed = tq("litestream", "sync", "acme", "--replica", missing, status=1).stderr
    assert "NoSuchBucket" in failed
    assert "hint: make the bucket" in failed
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for command in ("sync", "restore"):
        options = ["--yes"] if command == "restore" else []
        failed = tq("litestream", command, "acme", "--replica", bucket, *options, status=1).stderr
        assert "hint: give credentials" in failed, failed
    assert ready(tq, "acme") == [1]


def test_a_litestream_that_is_missing_old_or_none_says_what_to_install(
    tq: StoreCommand, tmp_path: Path, replica: str
) -> None:
    tq.enqueue("acme", "jobs", 1)
    for program, said, status in (
        (tmp_path / "nowhere", "there is no program", 2),
        (script(tmp_path / "old", "echo v0.3.13"), "is Litestream v0.3.13, older than 0.5", 2),
        (script(tmp_path / "none", "exit 1"), "is no Litestream", 1),
        (script(tmp_path / "dies", '[ "$1" = version ] && echo 0.5.17 || kill -9 $$'), "the replica failed", 1),
    ):
        for command in (["sync", "acme"], ["run"]):
            given = ["--replica", replica, "--litestream", str(program)]
            failed = tq("litestream", *command, *given, status=status).stderr
            expected = "did not start" if (program.name, command) == ("dies", ["run"]) else said
            assert expected in failed
            assert "hint: " in failed or program.name == "none"
    assert ready(tq, "acme") == [1]


def test_without_a_replica_every_command_says_how_to_give_one(tq: StoreCommand, binary: Binary) -> None:
    tq.enqueue("acme", "jobs", 1)
    for command in (["run"], ["sync", "acme"], ["restore", "acme", "--yes"]):
        assert "--replica URL" in tq("litestream", *command, status=2).stderr
    assert "none is given yet" in tq("litestream", "config").stderr


def test_status_is_a_problem_where_changes_wait_too_long(tq: StoreCommand, replica: str, binary: Binary) -> None:
    tq.enqueue("acme", "jobs", 1)
    tq("litestream", "status")
    result = tq("litestream", "status", "--max-lag", "0", status=1)
    assert "1 tenants: 1 never" in result.stdout
    assert "no tenant 'globex'" in tq("litestream", "status", "globex", status=1).stderr
    tq("litestream", "sync", "acme", "--replica", replica)
    assert tq("litestream", "status", "acme", "--max-lag", "0").stdout == "acme: replicated, 0.0 s behind\n"
    tq.enqueue("acme", "jobs", 2)
    assert tq.json("litestream", "status", "acme", "--max-lag", "0", status=1)["state"] == "behind"


def test_config_prints_what_litestream_is_run_with_and_keeps_what_is_given(tq: StoreCommand, replica: str) -> None:
    tq.enqueue("acme", "jobs", 1)
    printed = tq("litestream", "config", "--replica", replica, "--hot", "3", "--retention-hours", "48").stdout
    assert "snapshot: {interval: 24h, retention: 48h}" in printed
    kept = tq.json("litestream", "config")
    assert (kept["replica"], kept["hot"], kept["retention_hours"]) == (replica, 3, 48)
    assert "begins with none of" in tq("litestream", "config", "--replica", "nowhere", status=2).stderr
    assert tq.json("litestream", "config") == kept
    assert json.loads((tq.path / ".litestream" / "settings.json").read_text()) == kept
    assert os.stat(tq.path / ".litestream").st_mode & 0o777 == 0o700  # noqa: PTH116


def test_a_deleted_tenant_leaves_nothing_in_a_replica_if_that_is_asked(
    tq: StoreCommand, tmp_path: Path, replica: str, binary: Binary
) -> None:
    for tenant in ("acme", "globex"):
        tq.enqueue(tenant, "jobs", 1)
    assert "has no replica" in tq("delete", "acme", "--replica", "--yes", status=2).stderr
    tq("litestream", "config", "--replica", replica)
    for tenant in ("acme", "globex"):
        tq("litestream", "sync", tenant)
    document = tq.json("delete", "acme", "--replica", "--yes")
    (url,) = document["replicas"]
    assert url.startswith(replica)
    assert {path.name for path in tmp_path.glob("replica/*/*")} == {"globex.db"}
    tq("litestream", "config", "--replica", "gs://bucket/tenants")
    assert "removes nothing" in tq("delete", "globex", "--replica", "--yes", status=2).stderr
    assert ready(tq, "globex") == [1]


def test_a_deleted_tenant_leaves_nothing_in_an_s3_if_that_is_asked(
    tq: StoreCommand, bucket: str, binary: Binary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("acme", "globex"):
        tq.enqueue(tenant, "jobs", 1)
    tq("litestream", "config", "--replica", bucket)
    for tenant in ("acme", "globex"):
        tq("litestream", "sync", tenant)
    with monkeypatch.context() as wrong:
        wrong.setitem(sys.modules, "boto3", None)
        assert "tenantq[s3]" in tq("delete", "acme", "--replica", "--yes", status=1).stderr
    tq("litestream", "config", "--replica", bucket.replace("backups", "nowhere"))
    assert "nowhere" in tq("delete", "acme", "--replica", "--yes", status=1).stderr
    assert ready(tq, "acme") == [1]
    tq("litestream", "config", "--replica", bucket)
    document = tq.json("delete", "acme", "--replica", "--yes")
    assert document["replicas"]
    assert all("/acme.db/" in name for name in document["replicas"])
    assert "nothing" in tq("litestream", "restore", "acme", "--yes", status=1).stderr.lower()
    tq("litestream", "restore", "globex", "--yes")
    assert ready(tq, "globex") == [1]
