"""A pooler's way with a connection's options, in front of a real Postgres: it refuses them, or drops them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

REFUSAL = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"


class Pooler:
    """Listens on the loopback; `refuses`: as PgBouncer by default, else as with ignore_startup_parameters."""

    def __init__(self, directory: Path, *, refuses: bool) -> None:
        self._socket_path = str(directory / ".s.PGSQL.5432")
        self._refuses = refuses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, database: str) -> str:
        """Return the way through it to a database."""
        port = self._listener.getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # a close alone ends no accept or recv of another thread
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        reader = client.makefile("rb")
        (length,) = struct.unpack("!i", reader.read(4))
        body = reader.read(length - 4)
        words = body[4:].rstrip(b"\0").split(b"\0")
        params = dict(zip(words[::2], words[1::2], strict=True))
        if b"options" in params and self._refuses:
            client.sendall(b"E" + struct.pack("!i", len(REFUSAL) + 4) + REFUSAL)
            client.shutdown(socket.SHUT_RDWR)
            return
        params.pop(b"options", None)
        body = body[:4] + b"".join(name + b"\0" + value + b"\0" for name, value in params.items()) + b"\0"
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._socket_path)
        self._open.append(server)
        server.sendall(struct.pack("!i", len(body) + 4) + body)
        threading.Thread(target=_pump, args=(server, client), daemon=True).start()
        _pump(client, server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other side has gone
