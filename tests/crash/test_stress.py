"""Producers and consumers on one tenant, killed at random: nothing acknowledged is lost or comes twice."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

import tenantq
from tests.children import Child

SECONDS = 6
PRODUCERS = CONSUMERS = 4
LEASE = 0.5

PRODUCER = """
tenant = tenantq.open(sys.argv[1]).tenant("acme")
while True:
    say("sent", tenant.enqueue("mail", 1, max_attempts=1000))
"""

CONSUMER = """
import time
tenant = tenantq.open(sys.argv[1]).tenant("acme")
lease = float(sys.argv[2])
while True:
    for message in tenant.claim("mail", 3, lease=lease, worker="one name for all", wait=1):
        say("claimed", message.id, message.attempts, message.lease_expires_ns)
        try:
            say("acking", message.id, message.attempts, time.time_ns())
            message.ack()
        except tenantq.LeaseLost:
            say("lost", message.id, message.attempts)
        else:
            say("acked", message.id, message.attempts, time.time_ns())
"""


def run(root: Path, seconds: float, seed: int) -> None:
    choose = random.Random(seed)
    lines: list[str] = []
    children: list[Child] = []

    scripts = [PRODUCER] * PRODUCERS + [CONSUMER] * CONSUMERS
    outputs: list[Path] = []

    def begin(script: str) -> Child:
        output = root.parent / f"output-{len(outputs)}"
        outputs.append(output)
        redirected = f"os.dup2(os.open({str(output)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)\n" + script
        return Child(redirected, root, LEASE)

    try:
        children = [begin(script) for script in scripts]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            number = choose.randrange(len(children))
            with pytest.raises(subprocess.TimeoutExpired):  # it runs on, as it should
                children[number].process.wait(choose.uniform(0.05, 0.5))
            children[number].__exit__(None, None, None)
            children[number] = begin(scripts[number])
    finally:
        for child in children:
            child.__exit__(None, None, None)
    for output in outputs:
        if output.exists():
            text = output.read_text()
            lines += text[: text.rfind("\n") + 1].splitlines()
    check(root, [line.split() for line in lines])


def check(root: Path, said: list[list[str]]) -> None:
    sent = [int(words[1]) for words in said if words[0] == "sent"]
    acked = {int(words[1]): (int(words[2]), int(words[3])) for words in said if words[0] == "acked"}
    claims: dict[int, list[tuple[int, int]]] = {}
    for words in said:
        if words[0] == "claimed":
            claims.setdefault(int(words[1]), []).append((int(words[2]), int(words[3])))
    assert len(sent) == len(set(sent)), "an id was given twice"
    assert len([words for words in said if words[0] == "acked"]) == len(acked), "a message was acked twice"
    for message_id, deliveries in claims.items():
        deliveries.sort()
        numbers = [attempt for attempt, _expires in deliveries]
        assert len(numbers) == len(set(numbers)), f"two claims of {message_id} are the same attempt"
        for (_, expires), (_, next_expires) in itertools.pairwise(deliveries):
            claimed_ns = next_expires - int(LEASE * 1e9)
            assert claimed_ns >= expires, f"two live leases of {message_id}"
        if message_id in acked:
            assert numbers[-1] == acked[message_id][0], f"{message_id} was delivered after its ack"
    with tenantq.open(root) as store:
        acme = store.tenant("acme")
        assert tenantq.verify(acme.path).problems == ()
        with acme.transaction() as tx:
            left = {row[0] for row in tx.execute("SELECT id FROM queue")}
            assert tx.execute("SELECT count(*) FROM tenantq_dead") == [(0,)]
        assert not left & acked.keys(), "an acked message is still there"
        # Gone without an ack that was heard: its consumer was killed between the commit and the word.
        acking = {int(words[1]) for words in said if words[0] == "acking"}
        lost = set(sent) - left - acked.keys() - acking
        assert not lost, f"{len(lost)} of {len(sent)} messages are lost"
        unheard = set(sent) - left - acked.keys()
        assert len(unheard) <= len(said) / 100 + 50
    assert sent
    assert acked


@pytest.mark.parametrize("seed", [int(os.environ.get("TENANTQ_TEST_SEED", "1"))])
def test_nothing_is_lost_or_held_twice_while_processes_are_killed(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "store", SECONDS, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_or_held_twice_for_longer(tmp_path: Path, seed: int) -> None:
    run(tmp_path / "store", 60, seed)
