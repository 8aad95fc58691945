"""The supervisor with the real Litestream: who is replicated, what costs nothing, and what a kill leaves."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

import tenantq
from tenantq._litestream import Running
from tenantq_tools.litestream import LitestreamFailed, ReplicaGap, Settings, Supervisor, SupervisorRuns
from tenantq_tools.litestream.binary import Binary, find_binary
from tenantq_tools.litestream.control import Control
from tenantq_tools.litestream.health import State, read_replication
from tenantq_tools.litestream.oneshot import send
from tenantq_tools.litestream.restoring import restore_tenant, save_tenant
from tests.litestream.conftest import S3, script
from tests.litestream.watching import go_round, state_of, until_replicated
from tests.older import make_version_1, version_of


def saved(store: tenantq.Store, settings: Settings, binary: Binary, tenant: str, target: Path) -> list[object]:
    """Return the payloads that a tenant's replica has."""
    save_tenant(store, settings, binary, tenant, target)
    with tenantq.open(target.parent / f"{target.name}.store") as other:
        other.restore(tenant, target)
        return [message.payload for message in other.tenant(tenant).claim("jobs", 10_000)]


def test_more_tenants_than_have_a_place_are_all_replicated(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    names = [f"t{number}" for number in range(15)]
    for name in names:
        store.tenant(name).enqueue("jobs", name)
    supervisor.start()
    until_replicated(supervisor, store, *names)
    running = Running.read(store.root)
    assert running is not None
    assert len(Control(running).registered()) <= settings.hot
    for name in names:
        assert saved(store, settings, binary, name, tmp_path / name) == [name]


def test_a_change_of_any_kind_by_any_process_is_replicated(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    acme = store.tenant("acme")
    acme.enqueue_many("jobs", range(3))
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    acme.claim("jobs", 1)[0].ack()  # which rings no bell
    until_replicated(supervisor, store, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "one") == [1, 2]


def test_a_tenant_that_rests_is_let_go_whole_in_one_file_and_is_not_taken_again(
    store: tenantq.Store, settings: Settings, binary: Binary
) -> None:
    with tenantq.open(store.root) as other:
        other.tenant("acme").enqueue("jobs", 1)
        path = other.tenant("acme").path
    with tenantq.open(store.root, migrate=False) as its_own:
        quick = Settings(replica=settings.replica, hot=4, idle=1)
        with Supervisor(its_own, quick, binary) as supervisor:
            until_replicated(supervisor, store, "acme")
            go_round(supervisor, lambda: supervisor.hot == 0)
            assert state_of(store, "acme").state == State.REPLICATED
            assert sorted(file.name for file in path.parent.iterdir()) == [".acme.db-litestream", "acme.db"]
            txid = state_of(store, "acme").txid
        with Supervisor(its_own, quick, binary) as supervisor:  # which finds nothing to do
            go_round(supervisor, lambda: supervisor.rounds > 3)
            assert supervisor.hot == supervisor.waiting == 0
    assert state_of(store, "acme").txid == txid


def test_a_killed_litestream_is_started_again_and_nothing_is_lost(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("jobs", 1)
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    for number in range(2, 4):
        pid = supervisor.litestream_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        acme.enqueue("jobs", number)
        go_round(supervisor, lambda pid=pid: supervisor.litestream_pid not in (None, pid))  # type: ignore[misc]
        until_replicated(supervisor, store, "acme")
    assert supervisor.restarts == 2
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == [1, 2, 3]


def test_what_was_written_and_checkpointed_while_nothing_ran_is_replicated_at_the_next_start(
    store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    with tenantq.open(store.root) as its_own, Supervisor(its_own, settings, binary) as supervisor:
        store.tenant("acme").enqueue("jobs", 1)
        until_replicated(supervisor, store, "acme")
    store.tenant("acme").enqueue_many("jobs", range(2, 50))
    store.close()
    with tenantq.open(store.root) as again, tenantq.open(store.root) as its_own:
        assert state_of(again, "acme").state == State.BEHIND
        with Supervisor(its_own, settings, binary) as supervisor:
            until_replicated(supervisor, again, "acme")
        assert saved(again, settings, binary, "acme", tmp_path / "copy") == list(range(1, 50))


def test_a_deleted_tenant_that_is_made_again_is_replicated_as_the_new_one(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    store.tenant("acme").enqueue("jobs", "old")
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    assert store.delete("acme")
    left = {path.name for path in store.root.rglob("*acme*")}
    assert left == {"acme.deleted"}, "Litestream's own files go along"
    store.create("acme").enqueue("jobs", "new")
    until_replicated(supervisor, store, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == ["new"]


def test_a_restored_tenant_goes_on_in_its_replica(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("jobs", 1)
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    acme.purge("jobs")
    acme.backup(tmp_path / "empty.db")
    until_replicated(supervisor, store, "acme")
    store.restore("acme", tmp_path / "empty.db")
    acme.enqueue("jobs", 2)
    until_replicated(supervisor, store, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == [2]
    acme.purge("jobs")  # and back out of the replica, under the running supervisor, before that is sent or after
    restore_tenant(store, settings, binary, "acme")
    acme.enqueue("jobs", 3)
    until_replicated(supervisor, store, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "again")[-1] == 3


def test_a_replica_that_lost_its_files_is_found_told_and_mended(
    store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    quick = Settings(replica=settings.replica, hot=4, idle=1)
    acme = store.tenant("acme")
    acme.enqueue("jobs", 1)
    with tenantq.open(store.root) as its_own, Supervisor(its_own, quick, binary) as supervisor:
        until_replicated(supervisor, store, "acme")
        shutil.rmtree(tmp_path / "replica")
        acme.enqueue("jobs", 2)  # which Litestream sends, and says that all is there
        go_round(supervisor, lambda: state_of(store, "acme").state == State.BROKEN)
        found = state_of(store, "acme")
        assert found.error is not None
        assert "the replica" in found.error
        assert found.is_problem(max_lag=3600)
        with pytest.raises(ReplicaGap) as caught:
            send(store, quick, binary, "acme")
        assert "--snapshot" in caught.value.hint
        assert acme.stats().ready == 2
        send(store, quick, binary, "acme", snapshot=True)
        until_replicated(supervisor, store, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == [1, 2]


def test_a_replica_that_cannot_be_written_is_told_of_and_made_up_for_later(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    (tmp_path / "replica").write_text("a file where the directory would be")
    store.tenant("acme").enqueue("jobs", 1)
    supervisor.start()
    go_round(supervisor, lambda: state_of(store, "acme").state == State.FAILING)
    assert "not a directory" in (state_of(store, "acme").error or "")
    assert store.tenant("acme").enqueue("jobs", 2) == 2
    (tmp_path / "replica").unlink()
    until_replicated(supervisor, store, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == [1, 2]


def test_one_store_has_one_supervisor(supervisor: Supervisor, store: tenantq.Store, binary: Binary) -> None:
    store.tenant("acme").enqueue("jobs", 1)
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    with pytest.raises(SupervisorRuns, match="another process replicates"):
        Supervisor(store, supervisor._settings, binary).run()
    assert read_replication(store).supervisor == "running"
    supervisor.stop()
    found = read_replication(store)
    assert (found.supervisor, found.litestream, found.tenants[0].state) == ("stopped", None, State.REPLICATED)


def test_a_litestream_that_does_not_start_is_told_with_what_it_said(
    store: tenantq.Store, settings: Settings, tmp_path: Path
) -> None:
    fake = script(tmp_path / "fake", '[ "$1" = version ] && echo 0.5.17 || { echo cannot do that; exit 3; }')
    with pytest.raises(LitestreamFailed, match="did not start: cannot do that"):
        Supervisor(store, settings, find_binary(str(fake))).run()


def test_a_supervisor_that_was_killed_leaves_a_litestream_that_the_next_one_ends(
    store: tenantq.Store, settings: Settings, binary: Binary
) -> None:
    with tenantq.open(store.root) as its_own:
        killed = Supervisor(its_own, settings, binary)
        running = killed._process.start()
        store.tenant("acme").enqueue("jobs", 1)
        Control(running).register(store.tenant("acme").path, settings.url_of(store.tenant("acme").path))
        with Supervisor(its_own, settings, binary) as supervisor:
            until_replicated(supervisor, store, "acme")
            assert killed._process.has_ended
        killed._process.stop()


def test_a_litestream_that_stands_still_is_killed_and_started_again(
    supervisor: Supervisor, store: tenantq.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.tenant("acme").enqueue("jobs", 1)
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    monkeypatch.setattr("tenantq._litestream.MARGIN", 0.2)
    monkeypatch.setattr("tenantq_tools.litestream.control.SYNC_TIMEOUT", 0)
    pid = supervisor.litestream_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    for name in ("acme", "globex", "initech"):
        store.tenant(name).enqueue("jobs", name)
    go_round(supervisor, lambda: supervisor.restarts == 1)
    monkeypatch.undo()
    until_replicated(supervisor, store, "acme", "globex", "initech")
    copied = saved(store, supervisor._settings, supervisor._binary, "acme", tmp_path / "copy")
    assert copied == [1, "acme"]


def test_nothing_is_asked_of_an_s3_while_no_tenant_changes(
    store: tenantq.Store, binary: Binary, s3: S3, bucket: str
) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        store.tenant(name).enqueue("jobs", name)
    quick = Settings(replica=bucket, hot=4, idle=1)
    with tenantq.open(store.root) as its_own, Supervisor(its_own, quick, binary) as supervisor:
        until_replicated(supervisor, store, *names)
        go_round(supervisor, lambda: supervisor.hot == 0 and supervisor.is_settled)
        requests, rounds = s3.requests, supervisor.rounds
        assert requests > 0
        go_round(supervisor, lambda: supervisor.rounds > rounds + 6)
        assert s3.requests == requests


def test_a_tenant_gets_a_new_snapshot_each_day_and_what_is_too_old_is_removed(
    store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenantq_tools.litestream.supervisor.SECONDS_PER_HOUR", 0)  # each hour has passed
    quick = Settings(replica=settings.replica, hot=4, idle=1)
    acme = store.tenant("acme")
    with tenantq.open(store.root) as its_own, Supervisor(its_own, quick, binary) as supervisor:
        for number in range(2):
            acme.enqueue("jobs", number)
            until_replicated(supervisor, store, "acme")
            go_round(supervisor, lambda: supervisor.hot == 0 and supervisor.is_settled)
    snapshots = list(tmp_path.glob("replica/*/acme.db/ltx/9/*.ltx"))
    assert len(snapshots) == 2
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == [0, 1]


def test_a_file_that_is_replaced_past_the_store_is_replicated_as_the_new_one(
    supervisor: Supervisor, store: tenantq.Store, settings: Settings, binary: Binary, tmp_path: Path
) -> None:
    with tenantq.open(store.root) as other:
        other.tenant("acme").enqueue("jobs", "old")
        path = other.tenant("acme").path
    with tenantq.open(tmp_path / "elsewhere") as other:
        other.tenant("acme").enqueue("jobs", "new")
        made = other.tenant("acme").path
    supervisor.start()
    until_replicated(supervisor, store, "acme")
    made.replace(path)
    for sidecar in ("-wal", "-shm"):
        path.with_name(path.name + sidecar).unlink()
    send(store, settings, binary, "acme")
    assert saved(store, settings, binary, "acme", tmp_path / "copy") == ["new"]
    path.unlink()
    go_round(supervisor, lambda: not read_replication(store).tenants)
    store.tenant("globex").enqueue("jobs", 1)
    until_replicated(supervisor, store, "globex")


def test_a_file_of_an_older_schema_is_replicated_and_left_as_it_is(
    store: tenantq.Store, settings: Settings, binary: Binary
) -> None:
    path = make_version_1(store.tenant("acme").path, "acme")
    quick = Settings(replica=settings.replica, hot=4, idle=1)
    with tenantq.open(store.root, migrate=False) as its_own, Supervisor(its_own, quick, binary) as supervisor:
        until_replicated(supervisor, store, "acme")
        go_round(supervisor, lambda: supervisor.hot == 0)
        assert state_of(store, "acme").error is None
    assert version_of(path) == 1
