"""The doorbell: every ring is heard, in this process and in others, whoever else rings or listens."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenantq
from tenantq import _doorbell
from tenantq._doorbell import SLOTS, Doorbell, shard_of, slot_of
from tenantq._schema import path_of

PATIENCE = 20.0


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Doorbell]:
    bell = Doorbell(tmp_path)
    yield bell
    bell.close()


def heard_by(bell: Doorbell) -> queue.Queue[frozenset[int]]:
    heard: queue.Queue[frozenset[int]] = queue.Queue()
    bell.subscribe(heard.put)
    return heard


def gather(heard: queue.Queue[frozenset[int]], wanted: set[int]) -> set[int]:
    found: set[int] = set()
    while not wanted <= found:
        found |= heard.get(timeout=PATIENCE)
    return found


@pytest.mark.parametrize("tenant_id", ["acme", "Acme", "Café Amélie", "x" * 128])
def test_a_slot_lies_in_its_tenants_shard(tenant_id: str) -> None:
    assert 0 <= slot_of(tenant_id) < SLOTS
    assert path_of(Path("/s"), tenant_id).parent.name == shard_of(slot_of(tenant_id))


def test_every_slot_that_is_rung_is_told(bell: Doorbell) -> None:
    heard = heard_by(bell)
    for slot in range(0, SLOTS, 7):
        bell.ring(slot)
    wanted = set(range(0, SLOTS, 7))
    assert gather(heard, wanted) == wanted


def test_a_ring_of_another_process_is_heard(bell: Doorbell, tmp_path: Path) -> None:
    heard = heard_by(bell)
    code = "import sys; from pathlib import Path; from tenantq._doorbell import Doorbell; "
    subprocess.run([sys.executable, "-c", code + "Doorbell(Path(sys.argv[1])).ring(5)", tmp_path], check=True)
    assert gather(heard, {5}) == {5}


def test_a_slot_rings_again_after_it_was_told(bell: Doorbell) -> None:
    heard = heard_by(bell)
    for _ in range(100):
        bell.ring(9)
        gather(heard, {9})


def test_no_ring_is_lost_when_many_ring_at_once(bell: Doorbell, tmp_path: Path) -> None:
    heard = heard_by(bell)
    others = [Doorbell(tmp_path) for _ in range(4)]

    def ring(other: Doorbell, first: int) -> None:
        for slot in range(first, SLOTS, 4):
            other.ring(slot)

    threads = [threading.Thread(target=ring, args=(other, first)) for first, other in enumerate(others)]
    for thread in threads:
        thread.start()
    assert gather(heard, set(range(SLOTS))) == set(range(SLOTS))
    for thread in threads:
        thread.join()
    for other in others:
        other.close()


def test_without_inotify_the_map_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doorbell, "_watch", lambda _path: -1)
    bell = Doorbell(tmp_path)
    heard = heard_by(bell)
    bell.ring(3)
    assert gather(heard, {3}) == {3}
    bell.close()


def test_a_subscriber_that_fails_keeps_no_other_from_hearing(bell: Doorbell) -> None:
    def fail(_slots: frozenset[int]) -> None:
        raise ValueError

    bell.subscribe(fail)
    heard = heard_by(bell)
    bell.ring(1)
    assert gather(heard, {1}) == {1}


def test_a_bell_that_cannot_be_written_is_no_error_of_the_commit(tmp_path: Path) -> None:
    (tmp_path / _doorbell.FILE_NAME).mkdir()
    with tenantq.open(tmp_path) as store:
        assert store.tenant("acme").enqueue("q", 1) == 1
        with store.watch() as watch:
            assert watch.wait(PATIENCE) == {"acme"}


def test_close_gives_back_all_descriptors_and_the_thread(tmp_path: Path) -> None:
    descriptors, threads = set(Path("/proc/self/fd").iterdir()), set(threading.enumerate())
    bell = Doorbell(tmp_path)
    heard = heard_by(bell)
    bell.ring(1)
    gather(heard, {1})
    bell.close()
    # Others may give up theirs meanwhile.
    assert set(Path("/proc/self/fd").iterdir()) - descriptors == set()
    assert set(threading.enumerate()) - threads == set()


def test_a_waiting_claim_is_woken_by_another_process(tmp_path: Path) -> None:
    code = (
        "import sys, tenantq\n"
        "with tenantq.open(sys.argv[1]) as store:\n"
        "    sys.stdin.readline()\n"
        "    store.tenant('acme').enqueue('q', 'hello')\n"
    )
    with tenantq.open(tmp_path) as store:
        child = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, text=True)
        assert child.stdin is not None
        threading.Timer(0, lambda: child.communicate("go\n")).start()
        (message,) = store.tenant("acme").claim("q", wait=PATIENCE)
        assert message.payload == "hello"
        assert child.wait() == 0
