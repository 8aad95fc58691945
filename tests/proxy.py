"""A small proxy between the queue and Postgres that can fall silent, or cut, as networks do."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

from psycopg import conninfo

from tests.postgres import PostgresServer


class Proxy:
    """Leads a loopback port to a server's socket. Of what passes it reads no more than whether it has LISTEN."""

    def __init__(self, server: PostgresServer) -> None:
        self._target = str(server.directory / ".s.PGSQL.5432")
        self._accepting = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self.has_listener = threading.Event()
        """Set when a session has asked to LISTEN, and cleared by `silence_listeners`."""
        threading.Thread(target=self._accept, daemon=True).start()

    def behind(self, dsn: str) -> str:
        """Return a URL that leads to the same database by way of the proxy."""
        database = conninfo.conninfo_to_dict(dsn)["dbname"]
        return f"postgresql://postgres@127.0.0.1:{self._accepting.getsockname()[1]}/{database}"

    def silence_listeners(self) -> None:
        """Pass nothing on any more, either way, of the sessions that listen; their sockets stay open."""
        with self._lock:
            for pair in self._pairs:
                pair.is_silent |= pair.is_listener
        self.has_listener.clear()

    def cut(self) -> None:
        """End all connections, without a word from the server."""
        with self._lock:
            for pair in self._pairs:
                pair.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._accepting.shutdown(socket.SHUT_RDWR)  # a close alone does not end the accept
        self._accepting.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._accepting.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            pair = _Pair(client, server)
            with self._lock:
                self._pairs.append(pair)
            threading.Thread(target=self._carry, args=(pair,), daemon=True).start()

    def _carry(self, pair: _Pair) -> None:
        with pair.client, pair.server, contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
            selector.register(pair.client, selectors.EVENT_READ, pair.server)
            selector.register(pair.server, selectors.EVENT_READ, pair.client)
            while True:
                for key, _ in selector.select():
                    source, sink = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(65_536)
                    if not data:
                        return
                    if pair.is_silent:
                        continue
                    sink.sendall(data)
                    if source is pair.client and b"LISTEN" in data:
                        pair.is_listener = True
                        self.has_listener.set()


class _Pair:
    """One connection and where it leads."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_listener = False
        self.is_silent = False

    def end(self) -> None:
        """Let both ends find it over; who carries it closes them."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
