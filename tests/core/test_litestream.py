"""What a store does about the Litestream that replicates it, before it deletes or replaces a file."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import tenantq
from tenantq import _litestream
from tenantq._litestream import LitestreamGone, LitestreamSilent, Running, ask, meta_directory


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket where a Litestream would be, by a path that is short enough on every machine."""
    path = f"/tmp/tq-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield listener
    Path(path).unlink()


def say_runs(store: tenantq.Store, socket_path: str, root: str = "") -> None:
    directory = store.root / _litestream.DIRECTORY
    directory.mkdir(exist_ok=True)
    running = Running(socket=socket_path, root=root or str(store.root))
    (directory / _litestream.RUNNING_FILE).write_bytes(msgspec.json.encode(running))


@contextlib.contextmanager
def answering(listener: socket.socket, *answers: bytes) -> Iterator[list[bytes]]:
    """Answer so many requests, and keep what was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield asked
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_litestream_lets_a_tenant_go_before_it_is_deleted(store: tenantq.Store, listener: socket.socket) -> None:
    acme = store.tenant("acme")
    acme.enqueue("jobs", 1)
    meta_directory(acme.path).mkdir()
    say_runs(store, listener.getsockname(), root="/srv/seen/elsewhere")
    with answering(listener, b'HTTP/1.0 200 OK\r\nX: y\r\n\r\n{"status":"unregistered"}') as asked:
        assert store.delete("acme")
    assert asked[0].startswith(b"POST /unregister ")
    assert f'"/srv/seen/elsewhere/{acme.path.parent.name}/acme.db"'.encode() in asked[0]
    assert not meta_directory(acme.path).exists()


def test_a_last_sync_that_fails_holds_up_nobody_if_the_file_is_closed(
    store: tenantq.Store, listener: socket.socket
) -> None:
    store.tenant("acme").enqueue("jobs", 1)
    say_runs(store, listener.getsockname())
    failed = b'HTTP/1.0 500 Oops\r\n\r\n{"error":"close db: shutdown sync timeout"}'
    with answering(listener, failed, b'HTTP/1.0 200 OK\r\n\r\n{"databases":[]}'):
        assert store.delete("acme")


def test_a_litestream_that_keeps_a_tenant_open_keeps_it_from_being_deleted(
    store: tenantq.Store, listener: socket.socket
) -> None:
    acme = store.tenant("acme")
    acme.enqueue("jobs", 1)
    say_runs(store, listener.getsockname())
    path = str(acme.path).encode()
    listed = b'HTTP/1.0 200 OK\r\n\r\n{"databases":[{"path":"%s"}]}' % path
    with (
        answering(listener, b'HTTP/1.0 500 Oops\r\n\r\n{"error":"no"}', listed),
        pytest.raises(tenantq.TenantInUse, match="does not let go: no") as caught,
    ):
        store.delete("acme")
    assert "tenantq litestream run" in caught.value.hint
    assert acme.stats().ready == 1


def test_a_litestream_that_does_not_answer_keeps_it_too(
    store: tenantq.Store, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.tenant("acme").enqueue("jobs", 1)
    say_runs(store, listener.getsockname())
    monkeypatch.setattr(_litestream, "MARGIN", 0.05)
    monkeypatch.setattr(_litestream, "RELEASE_TIMEOUT", 0)
    with pytest.raises(tenantq.TenantInUse, match="does not answer"):
        store.delete("acme")
    assert store.tenant("acme").stats().ready == 1


def test_an_answer_that_breaks_off_is_none(listener: socket.socket) -> None:
    with answering(listener, b"HTTP/1.0"), pytest.raises(LitestreamSilent, match="broke off"):
        ask(listener.getsockname(), "GET /list")


def test_a_litestream_that_is_gone_keeps_nobody(store: tenantq.Store, listener: socket.socket) -> None:
    store.tenant("acme").enqueue("jobs", 1)
    say_runs(store, "/nonexistent/control.sock")
    with pytest.raises(LitestreamGone):
        ask("/nonexistent/control.sock", "GET /list")
    assert store.delete("acme")
    (store.root / _litestream.DIRECTORY / _litestream.RUNNING_FILE).write_text("torn")
    store.create("acme")
    assert store.delete("acme")
