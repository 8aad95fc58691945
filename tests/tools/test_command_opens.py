"""No command opens a live tenant's file but by SQLite: each in a process of its own, which is watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import opens
from tests.tools.command import StoreCommand

APP = """
import tenantq

worker = tenantq.Worker(tenantq.open({store!r}))

@worker.on("mail")
def handle(message: tenantq.Message[object]) -> None:
    worker.request_stop()
"""

COMMANDS = [
    "enqueue acme mail 1",
    "stats acme",
    "peek acme mail",
    "limit acme mail --max-depth 10",
    "backup acme {dir}/acme.db",
    "backup --all {dir}/all",
    "restore acme {dir}/acme.db --yes",
    "verify --all",
    "migrate --all",
    "reap acme",
    "worker --app app:worker",
    "dead list acme",
    "delete acme --yes",
]


def test_the_watch_tells_of_an_open_by_our_code_and_of_none_by_a_test(tmp_path: Path) -> None:
    live = tmp_path / "acme.db"
    namespace: dict[str, object] = {}
    file = f"{opens.OURS[0]}some_module.py"
    exec(compile("def look(path):\n    path.open().close()\n", file, "exec"), namespace)
    look = namespace["look"]
    assert callable(look)
    with live.open("w"):
        live.open().close()
        assert opens.found == []
        look(live)
    assert opens.found.pop().startswith(str(live))
    look(live)  # nobody has it open any more
    assert opens.found == []
    wal = tmp_path / "acme.db-wal"
    wal.touch()
    look(wal)
    assert opens.found.pop().startswith(str(wal))


def test_no_command_opens_a_live_file_by_other_means_than_sqlite(tq: StoreCommand, tmp_path: Path) -> None:
    environment, report = opens.watched_environment(tmp_path)
    (tmp_path / "app.py").write_text(APP.format(store=str(tq.path)))
    environment = {**os.environ, **environment, "TENANTQ_STORE": str(tq.path)}
    for command in COMMANDS:
        arguments = command.format(dir=tmp_path).split()
        done = subprocess.run(
            [sys.executable, "-m", "tenantq_tools", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert report.read_text() == ""
