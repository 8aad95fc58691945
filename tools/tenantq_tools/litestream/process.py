"""The Litestream of a store as a child process: started, its output in our log, and ended in time."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import msgspec

from tenantq._litestream import RUNNING_FILE, Running
from tenantq_tools.litestream.binary import Binary, environment
from tenantq_tools.litestream.errors import LitestreamFailed
from tenantq_tools.litestream.settings import CONFIG_FILE, Settings, config_text, directory_of, write_text

__all__ = ["LitestreamProcess", "end_orphan"]

START_TIMEOUT = 20.0
"""Seconds until a Litestream that does not listen has failed."""

STOP_TIMEOUT = 30.0
"""Seconds to send what is left, before it is killed: with a replica away it tries each file for 5 s, in turn."""

SOCKET_FILE = "control.sock"

MAX_SOCKET_PATH = 100
"""Bytes that the kernel takes in the path of a socket, with some to spare."""

LISTENING = "control socket listening"
NO_FILES = "no databases specified in configuration"
"""What it says when it is ready, and as an error at each start without files."""

logger = logging.getLogger("tenantq.litestream")


class LitestreamProcess:
    """One run of Litestream on a store, from `start` to `stop` or to its own end."""

    def __init__(self, binary: Binary, root: Path, settings: Settings) -> None:
        self._binary = binary
        self._root = root
        self._settings = settings
        self._directory = directory_of(root)
        self._socket = str(self._directory / SOCKET_FILE)
        if len(self._socket.encode()) > MAX_SOCKET_PATH:
            self._socket = str(Path(tempfile.mkdtemp(prefix="tenantq-")) / SOCKET_FILE)
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._listens = threading.Event()
        self._last_error = ""

    def start(self) -> Running:
        """Start it, and return where it is asked when it listens. Raises LitestreamFailed."""
        end_orphan(self._root)
        config = self._directory / CONFIG_FILE
        write_text(config, config_text(self._settings, self._socket))
        self._listens.clear()
        self._last_error = ""
        try:
            # A session of its own: Ctrl-C is for us, who stop it when its last changes are sent.
            self._child = subprocess.Popen(  # noqa: S603 - the program that was found
                [str(self._binary.path), "replicate", "-config", str(config), "-no-expand-env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
        except OSError as exc:
            raise LitestreamFailed(f"{self._binary.path} cannot be started: {exc}") from exc
        pid = self._child.pid
        running = Running(socket=self._socket, root=str(self._root), pid=pid, started=start_time(pid))
        write_text(self._directory / RUNNING_FILE, msgspec.json.encode(running).decode())
        self._reader = threading.Thread(target=self._read, args=(self._child,), name="tenantq-litestream-log")
        self._reader.start()
        if not self._listens.wait(START_TIMEOUT) or self.has_ended:
            self.stop()
            raise LitestreamFailed(
                f"Litestream did not start: {self._last_error or 'it does not listen'}",
                hint=f"look at {config}, and try `{self._binary.path} replicate -config {config}`",
            )
        return running

    @property
    def has_ended(self) -> bool:
        """Whether it ended, or was never started."""
        return self._child is None or self._child.poll() is not None

    @property
    def pid(self) -> int | None:
        """Of the child, also of one that has ended."""
        return None if self._child is None else self._child.pid

    def describe_end(self) -> str:
        """Say how it ended, and what it said last."""
        code = self._child.poll() if self._child is not None else None
        how = "it was not started"
        if code is not None:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"{how}{': ' if self._last_error else ''}{self._last_error}"

    def kill(self) -> None:
        """End it at once: one that does not answer does not stop either."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def stop(self) -> None:
        """End it: it sends what is left, and is killed when it takes too long. May be called again."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            logger.warning("Litestream did not end within %g s and is killed", STOP_TIMEOUT)
            child.kill()
            child.wait()
        if self._reader is not None:
            self._reader.join()
        (self._directory / RUNNING_FILE).unlink(missing_ok=True)
        Path(self._socket).unlink(missing_ok=True)
        if Path(self._socket).parent != self._directory:
            with contextlib.suppress(OSError):
                Path(self._socket).parent.rmdir()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                self._log(line.strip())
        child.wait()
        self._listens.set()  # it never will: whoever waits sees that it has ended

    def _log(self, line: bytes) -> None:
        try:
            record = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.MsgspecError:
            logger.warning("%s", line.decode(errors="backslashreplace"))
            self._last_error = line.decode(errors="backslashreplace")
            return
        said = str(record.pop("msg", ""))
        level = logging.getLevelNamesMapping().get(str(record.pop("level", "")).upper(), logging.INFO)
        if said == LISTENING:
            self._listens.set()
        details = " ".join(f"{key}={value}" for key, value in record.items() if key not in ("time", "system"))
        if level >= logging.ERROR and said != NO_FILES:
            self._last_error = f"{said} {details}".strip()
        logger.log(logging.DEBUG if level <= logging.INFO or said == NO_FILES else level, "%s %s", said, details)


def end_orphan(root: Path) -> bool:
    """End the Litestream that a killed supervisor left behind on a store; False if there is none."""
    running = Running.read(root)
    if running is None or not running.pid or not running.started or start_time(running.pid) != running.started:
        return False
    logger.warning("ending the Litestream %d that a supervisor left behind", running.pid)
    with contextlib.suppress(ProcessLookupError), contextlib.closing(_Handle(running.pid)) as handle:
        for number, patience in ((signal.SIGTERM, STOP_TIMEOUT), (signal.SIGKILL, STOP_TIMEOUT)):
            os.kill(running.pid, number)
            if handle.wait(patience):
                return True
    return True


def start_time(pid: int) -> str:
    """Return when a process started, as the kernel counts; empty where there is none or it does not say.

    One that has ended and was not yet waited for is none.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class _Handle:
    """Waits for the end of a process that is no child of ours."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended by then."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._descriptor)
