"""The real Litestream, and replicas in a directory and in an S3 of this machine."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import tenantq
from tenantq_tools.litestream import LitestreamMissing, Settings, Supervisor
from tenantq_tools.litestream.binary import Binary, find_binary


@pytest.fixture(scope="session")
def binary() -> Binary:
    """The program; a test that needs it is skipped without."""
    try:
        return find_binary()
    except LitestreamMissing as exc:
        pytest.skip(f"{exc.message} {exc.hint}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenantq.Store]:
    """The application's store."""
    with tenantq.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A replica in a directory."""
    return Settings(replica=f"file://{tmp_path}/replica", hot=4, idle=3600)


@pytest.fixture
def supervisor(tmp_path: Path, store: tenantq.Store, settings: Settings, binary: Binary) -> Iterator[Supervisor]:
    """A supervisor that is not started, with a store of its own as in a process of its own."""
    with tenantq.open(store.root, migrate=False) as its_own:
        supervisor = Supervisor(its_own, settings, binary)
        yield supervisor
        supervisor.stop()


class S3:
    """An S3 that takes any credentials."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests = 0

    def count(self, log: Iterable[str]) -> None:
        """Count the requests in its log, to its end."""
        for line in log:
            self.requests += "tenants" in line


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 of this machine."""
    try:
        import moto  # noqa: F401, PLC0415
    except ImportError:
        pytest.skip("moto is not installed: pip install 'moto[server]'")
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    log = server.stderr
    for line in log:  # it says when it listens
        if "Running on" in line:
            break
    s3 = S3(f"http://127.0.0.1:{port}")
    reader = threading.Thread(target=lambda: s3.count(log))
    reader.start()
    yield s3
    server.kill()
    server.wait()
    reader.join()
    log.close()


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The replica's URL in a fresh bucket, with credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nonexistent.pem")  # with it in its own environment Litestream fails
    request = urllib.request.Request(f"{s3.address}/backups", method="PUT")
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60):
        pass
    yield f"s3://backups/tenants?endpoint={s3.address}&region=us-east-1&forcePathStyle=true"
    urllib.request.urlopen(
        urllib.request.Request(f"{s3.address}/moto-api/reset", method="POST"), timeout=60
    ).close()


@pytest.fixture
def old_litestream(tmp_path: Path) -> Path:
    """A program that says of itself that it is Litestream 0.3."""
    return script(tmp_path / "old", "echo v0.3.13")


def script(path: Path, text: str) -> Path:
    """Write a program for the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def lose(replica: Path) -> None:
    """Delete all that a replica has."""
    shutil.rmtree(replica)
