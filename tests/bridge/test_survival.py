"""What a pool survives: sessions ended within a verb, lost replies, restarts, silence, failovers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import tenantq
from tenantq import Message
from tenantq_bridge import Forwarder, PostgresQueue, PostgresReadOnly, PostgresUnavailable, _bell, _postgres
from tests.bridge.conftest import Sql
from tests.conftest import start_server
from tests.postgres import PostgresServer, fresh_database
from tests.proxy import Proxy

pytestmark = pytest.mark.postgres

Verb = Callable[[PostgresQueue, Message[Any]], object]

VERBS: dict[str, Verb] = {
    "enqueue": lambda queue, _: queue.enqueue("new", 1),
    "enqueue with a key": lambda queue, _: queue.enqueue("new", 1, key="k"),
    "enqueue_many": lambda queue, _: queue.enqueue_many("new", [1]),
    "enqueue_many of several statements": lambda queue, _: queue.enqueue_many("new", range(5_001)),
    "claim": lambda queue, _: len(queue.claim("q")),
    "ack": lambda queue, message: queue.ack(message),
    "release": lambda queue, message: queue.release(message),
    "release with a delay": lambda queue, message: queue.release(message, delay=60),
    "nack": lambda queue, message: queue.nack(message, delay=60),
    "dead_letter": lambda queue, message: queue.dead_letter(message),
    "extend": lambda queue, message: queue.extend(message, 600),
    "stats": lambda queue, _: queue.stats().ready,
    "peek": lambda queue, _: len(queue.peek("q")),
    "dead_letters": lambda queue, _: len(queue.dead_letters()),
    "redrive": lambda queue, _: queue.redrive(),
    "purge": lambda queue, _: queue.purge("q"),
    "pause": lambda queue, _: queue.pause("q"),
    "resume": lambda queue, _: queue.resume("q"),
    "reap": lambda queue, _: queue.reap(),
    "subscribe": lambda queue, _: queue.subscribe("q", "*"),
    "unsubscribe": lambda queue, _: queue.unsubscribe("q", "*"),
    "subscriptions": lambda queue, _: queue.subscriptions(),
    "share": lambda queue, _: queue.share("q"),
    "unshare": lambda queue, _: queue.unshare("q"),
    "record": lambda queue, _: queue.record("q"),
    "history": lambda queue, _: queue.history(),
}

REPEATED = {
    "enqueue with a key",
    "claim",
    "extend",
    "stats",
    "peek",
    "dead_letters",
    "pause",
    "resume",
    "subscribe",
}
REPEATED |= {"unsubscribe", "subscriptions", "share", "unshare", "record", "history"}
"""The verbs that are run again when a reply is lost: twice is the same as once."""

IN_ONE_TRANSACTION = {"enqueue_many of several statements"}
"""What takes several statements, which are never run again by themselves."""


class Held:
    """All tables locked by somebody, so that a verb stops in its middle."""

    def __init__(self, dsn: str) -> None:
        self._locker = psycopg.connect(dsn)
        self._watcher = psycopg.connect(dsn, autocommit=True)
        tables = (
            "ready, tenantq.delayed, tenantq.dead, tenantq.keys, tenantq.pauses, tenantq.subscriptions, "
            "tenantq.lanes, tenantq.shared_queues, tenantq.waiting, tenantq.recorded_queues, tenantq.history"
        )
        self._locker.execute(f"LOCK TABLE tenantq.{tables}".encode())

    def sessions(self) -> list[int]:
        """Return the sessions that wait for the tables, once there is one."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            rows = self._watcher.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'tenantq'"
            ).fetchall()
            if rows:
                return [row[0] for row in rows]
        raise AssertionError("no session waits")

    def end_sessions(self) -> None:
        """End those sessions as an administrator does: 57P01."""
        for session in self.sessions():
            self._watcher.execute("SELECT pg_terminate_backend(%s, 5000)", (session,))

    def let_go(self) -> None:
        self._locker.close()
        self._watcher.close()


@pytest.fixture
def held(migrated_dsn: str) -> Iterator[Callable[[], Held]]:
    made: list[Held] = []

    def hold() -> Held:
        made.append(Held(migrated_dsn))
        return made[-1]

    yield hold
    for each in made:
        each.let_go()


@pytest.fixture
def proxied(postgres_server: PostgresServer, migrated_dsn: str) -> Iterator[tuple[Proxy, PostgresQueue]]:
    with Proxy(postgres_server) as proxy, PostgresQueue(proxy.behind(migrated_dsn)) as queue:
        yield proxy, queue


def prepare(queue: PostgresQueue) -> Message[Any]:
    """Let there be a message in each state, and return one that is claimed."""
    queue.enqueue_many("q", range(3))
    message, dead = queue.claim("q", 2)
    dead.dead_letter()
    queue.enqueue("q", 1, delay=600)
    return message


@pytest.mark.parametrize("verb", VERBS)
def test_a_session_that_is_ended_in_the_middle_of_a_verb_did_nothing_and_is_replaced(
    postgres_queue: PostgresQueue, held: Callable[[], Held], sql: Sql, verb: str
) -> None:
    message = prepare(postgres_queue)
    holder = held()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(VERBS[verb], postgres_queue, message)
        holder.end_sessions()
        if verb not in IN_ONE_TRANSACTION:
            holder.sessions()  # it is at it again, on another connection
            holder.let_go()
            running.result(30)
        else:
            with pytest.raises(PostgresUnavailable) as caught:
                running.result(30)
            assert not caught.value.outcome_unknown
            holder.let_go()
            VERBS[verb](postgres_queue, message)
    assert postgres_queue.database.losses
    if verb.startswith("enqueue"):
        assert sql(b"SELECT count(*) IN (1, 5001) FROM tenantq.ready WHERE queue = 'new'") == [(True,)]


@pytest.mark.parametrize("verb", VERBS)
def test_a_reply_that_is_lost_is_said_to_be_lost_unless_twice_is_the_same_as_once(
    proxied: tuple[Proxy, PostgresQueue], held: Callable[[], Held], sql: Sql, verb: str
) -> None:
    proxy, queue = proxied
    message = prepare(queue)
    holder = held()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(VERBS[verb], queue, message)
        holder.sessions()
        proxy.cut()
        if verb not in REPEATED:
            with pytest.raises(PostgresUnavailable) as caught:
                running.result(30)
            assert caught.value.outcome_unknown
            assert "may have taken effect" in caught.value.hint
        holder.let_go()
        if verb in REPEATED:
            running.result(30)
    queue.stats()
    if verb.startswith("enqueue"):
        assert sql(b"SELECT count(*) IN (0, 1, 5001) FROM tenantq.ready WHERE queue = 'new'") == [(True,)]


def test_a_listener_in_silence_is_found_out_and_holds_up_no_claim(
    proxied: tuple[Proxy, PostgresQueue],
    postgres_queue: PostgresQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_bell, "PROBE_SLICES", 1)
    monkeypatch.setattr(_postgres, "ANSWER_TIMEOUT", 0.5)
    proxy, queue = proxied
    with ThreadPoolExecutor(1) as pool:
        queue.claim("q", wait=0.01)
        assert proxy.has_listener.wait(30)
        proxy.silence_listeners()
        waiting = pool.submit(queue.claim, "q", wait=30.0)
        postgres_queue.enqueue("q", "polled for")
        assert [message.payload for message in waiting.result(20)] == ["polled for"]
        assert proxy.has_listener.wait(30)  # it gave the session up, and listens on another
        with queue._bell.waiter("q") as rung:
            deadline = time.monotonic() + 30
            while not rung.wait(0.1) and time.monotonic() < deadline:
                postgres_queue.enqueue("q", "told of")
            assert rung.is_set()


def test_a_queue_closes_while_its_listener_is_in_silence(
    proxied: tuple[Proxy, PostgresQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bell, "PROBE_SLICES", 1)
    monkeypatch.setattr(_postgres, "ANSWER_TIMEOUT", 0.5)
    proxy, queue = proxied
    queue.claim("q", wait=0.01)
    assert proxy.has_listener.wait(30)
    proxy.silence_listeners()
    queue.close()


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    server = start_server(request.config)
    yield server
    server.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_under_load_loses_nothing_and_raises_only_what_says_so(
    own_server: PostgresServer, mode: str
) -> None:
    # The tests' servers may lose what they committed; this one must not.
    durable = "&options=-c%20synchronous_commit%3Don"
    with fresh_database(own_server, migrated=True) as dsn, PostgresQueue(dsn + durable) as queue:
        stopping = threading.Event()
        lock = threading.Lock()
        committed: set[int] = set()
        unknown = 0
        done: list[int] = []
        outages: list[PostgresUnavailable] = []

        def produce(_: int) -> None:
            nonlocal unknown
            while not stopping.is_set():
                try:
                    message_id = queue.enqueue("q", 1)
                except PostgresUnavailable as exc:
                    with lock:
                        unknown += exc.outcome_unknown
                        outages.append(exc)
                    stopping.wait(0.01)
                else:
                    with lock:
                        committed.add(message_id)

        def consume(_: int) -> None:
            while not stopping.is_set():
                try:
                    messages = queue.claim("q", 5, lease=1, wait=0.1)
                    if messages:
                        queue.ack(*messages)
                except PostgresUnavailable as exc:
                    with lock:
                        outages.append(exc)
                    stopping.wait(0.01)
                except tenantq.LeaseLost:
                    continue
                else:
                    with lock:
                        done.extend(message.id for message in messages)

        with ThreadPoolExecutor(6) as pool:
            work = [pool.submit(produce, n) for n in range(3)] + [pool.submit(consume, n) for n in range(3)]
            try:
                for _ in range(2):
                    seen = len(done)
                    deadline = time.monotonic() + 30
                    while len(done) < seen + 50 and time.monotonic() < deadline:
                        stopping.wait(0.01)
                    own_server.stop(mode)
                    own_server.start()
            finally:
                stopping.set()
            for each in work:
                each.result(60)  # none ended by an error that says nothing
        assert outages
        assert len(done) == len(set(done))  # an ack that returned is the only one
        left = {message.id for message in queue.peek("q", 100_000)}
        left |= {row[0] for row in queue.database.run(b"SELECT id FROM tenantq.ready")}
        # Those of an ack whose reply was lost are in neither, and were handled.
        lost = committed - set(done) - left
        assert len(lost) <= 5 * sum(exc.outcome_unknown for exc in outages)


def test_a_failover_to_a_standby_is_told_and_survived_when_it_is_promoted(
    own_server: PostgresServer, store: tenantq.Store
) -> None:
    dsn = own_server.create_database(migrated=True)
    with PostgresQueue(dsn) as queue:
        queue.subscribe("q", "*")
        queue.enqueue("q", "kept")
    standby = own_server.stop_and_copy()
    own_server.start()
    name = dsn.rsplit("/", 1)[1].split("?")[0]
    both = f"host={standby.directory},{own_server.directory} user=postgres dbname={name}"
    try:
        with PostgresQueue(both) as queue, PostgresQueue(both, pool_size=1) as other:
            forwarder = Forwarder(store, other)
            store.tenant("acme").emit("t", "before")
            assert forwarder.run_once() == 1  # the standby is the first host, and never gets it
            assert [message.payload for message in queue.claim("q", 5)] == ["kept", "before"]
            own_server.stop("immediate")
            store.tenant("acme").emit("t", "after")
            for use in (lambda: queue.enqueue("q", 1), lambda: queue.claim("q"), forwarder.run_once):
                with pytest.raises(PostgresReadOnly) as caught:
                    use()
                assert not caught.value.outcome_unknown
            standby.promote()
            assert forwarder.run_once() == 2  # what the standby had not got is sent again
            assert [message.payload for message in queue.claim("q", 5)] == ["kept", "before", "after"]
            forwarder.stop()
    finally:
        standby.close()
