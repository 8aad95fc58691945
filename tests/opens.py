"""An audit hook that tells of each plain open of a live tenant's file by tenantq's own code.

POSIX drops all locks of a process on a file when any of its descriptors for that file is closed: only SQLite may
open one. The hook works in the process that calls `watch_opens`, and, by a `sitecustomize` (see
`watched_environment`), in the processes that it starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

OURS = tuple(f"{ROOT / part}{os.sep}" for part in ("tenantq", "bridge/tenantq_bridge", "tools/tenantq_tools"))

SALVAGE = f"{ROOT / 'tenantq' / '_pages.py'}:"

SIDECARS = ("-wal", "-shm", "-journal")

REPORT = "TENANTQ_TESTS_OPENS"
"""The environment variable with the file that started processes write to."""

found: list[str] = []
"""What was opened so far, and by which line."""

_state = {"is_watching": False}


def watch_opens() -> None:
    """Begin to look at each file that this process opens; there is no end to it."""
    if not _state["is_watching"]:
        _state["is_watching"] = True
        sys.addaudithook(_look)


def watched_environment(directory: Path) -> tuple[dict[str, str], Path]:
    """Return the variables that make a Python process watch itself, and the file that it reports to."""
    report = directory / "opens.txt"
    report.touch()
    (directory / "sitecustomize.py").write_text("from tests.opens import watch_opens\nwatch_opens()\n")
    return {REPORT: str(report), "PYTHONPATH": os.pathsep.join([str(directory), *map(str, _paths())])}, report


def _paths() -> list[Path]:
    return [ROOT, ROOT / "bridge", ROOT / "tools"]


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open":
        return
    path = arguments[0]
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    name = os.fsdecode(path)
    if not name.endswith((".db", *SIDECARS)):
        return
    culprit = _culprit()
    if name.endswith("-wal") and culprit is not None and culprit.startswith(SALVAGE):
        return  # of a file that nobody has open; and no lock is held on a -wal
    if culprit is not None and (name.endswith(SIDECARS) or _is_open(name)):
        found.append(f"{name} was opened by {culprit}")
        if REPORT in os.environ:
            with Path(os.environ[REPORT]).open("a", encoding="utf-8") as report:
                report.write(found[-1] + "\n")


def _culprit() -> str | None:
    """Return the line of tenantq that is at work, past the standard library; None if it is a test."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            return f"{file}:{frame.f_lineno}"
        if file.startswith(f"{ROOT}{os.sep}tests"):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_open(name: str) -> bool:
    """Tell whether this process has the file open already."""
    try:
        status = os.stat(name)  # noqa: PTH116 - pathlib would do more inside of the hook
    except OSError:
        return False
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            other = os.stat(f"/proc/self/fd/{descriptor}")  # noqa: PTH116
        except OSError:
            continue
        if (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino):
            return True
    return False
