"""Another library and tenantq enqueue from several processes that are killed: nothing acknowledged is lost."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import tenantq
from tests.children import Child

FOREIGN = """
import sqlite3
from tenantq import statements

path, name = sys.argv[1:]
connection = sqlite3.connect(path, isolation_level="IMMEDIATE", timeout=30)
for pragma in statements.pragmas(sqlite3.sqlite_version):
    connection.execute(pragma)
connection.execute("CREATE TABLE IF NOT EXISTS app (what TEXT)")
number = 0
while True:
    with connection:
        what = f"{name}:{number}"
        connection.execute("INSERT INTO app VALUES (?)", (what,))
        every = (
            *statements.enqueue("mail", what, key=what),
            *statements.enqueue("late", what, delay=0 if number % 2 else 3600),
            *statements.emit("topic", what),
        )
        for sql, parameters in every:
            connection.execute(sql, parameters)
    say(what)
    number += 1
"""

OURS = """
root, name = sys.argv[1:]
acme = tenantq.open(root).tenant("acme")
number = 0
while True:
    what = f"{name}:{number}"
    with acme.transaction() as tx:
        tx.enqueue("mail", what, key=what)
        tx.enqueue("late", what, delay=0 if number % 2 else 3600)
        tx.emit("topic", what)
    say(what)
    for message in acme.claim("work", 2):
        message.ack()
    acme.enqueue("work", number)
    number += 1
"""


@pytest.mark.parametrize("seed", range(2))
def test_what_either_library_acknowledged_is_there_once_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with tenantq.open(tmp_path) as store:
        path = store.prepare("acme")
    acknowledged: list[str] = []
    for turn in range(2):
        children = [
            Child(FOREIGN, path, f"foreign{turn}"),
            Child(FOREIGN, path, f"stranger{turn}"),
            Child(OURS, tmp_path, f"ours{turn}"),
        ]
        try:
            acknowledged += [child.heard() for child in children]
            for child in chance.sample(children, len(children)):
                acknowledged += [child.heard() for _ in range(chance.randrange(30))]
                child.process.kill()
                acknowledged += child.heard_all()
        finally:
            for child in children:
                child.__exit__(None, None, None)
    report = tenantq.verify(path)
    assert report.problems == ()
    with tenantq.open(tmp_path) as store:
        acme = store.tenant("acme")
        mail = [message.payload for message in acme.claim("mail", 100_000)]
        events = acme.outbox.read(0, limit=100_000, max_bytes=10**9)
        emitted = [event.body.strip('"') for event in events if isinstance(event.body, str)]
        with acme.transaction() as tx:
            rows = [row[0] for row in tx.execute("SELECT what FROM app")]
        late = [message.payload for message in acme.peek("late", 100_000)]
    assert set(acknowledged) <= set(mail)
    assert max(Counter(mail).values()) == 1
    assert sorted(mail) == sorted(emitted) == sorted(late)
    assert sorted(rows) == sorted(what for what in mail if not what.startswith("ours"))
