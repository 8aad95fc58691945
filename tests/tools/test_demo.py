"""The demo, whole: it sends, kills, restarts, forwards, copies, and its own check holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenantq_tools.demo.report import Report
from tenantq_tools.demo.run import DemoFailed, Paths

pytestmark = pytest.mark.postgres


def test_nothing_is_lost_or_repeated_though_a_worker_is_killed(tmp_path: Path, postgres_dsn: str) -> None:
    store = tmp_path / "demo"
    command = [sys.executable, "-m", "tenantq_tools", "demo", "--orders", "400", "--json"]
    done = subprocess.run(
        [*command, "--store", str(store), "--postgres", postgres_dsn],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "with SIGKILL" in done.stderr
    result = json.loads(done.stdout)
    layers = {layer["name"]: layer for layer in result["layers"]}
    assert (layers["tenant files"]["sent"], layers["tenant files"]["handled"]) == (400, 400)
    assert (layers["Postgres"]["forwarded"], layers["Postgres"]["handled"]) == (400, 400)
    assert all(check["holds"] for check in result["checks"])
    assert len(list((store / "backup").iterdir())) == 1


def test_a_store_that_holds_tenants_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tenants" / "82").mkdir(parents=True)
    with pytest.raises(DemoFailed) as caught:
        Paths.under(tmp_path)
    assert "empty directory" in caught.value.hint


def test_a_check_that_does_not_hold_fails_the_demo() -> None:
    report = Report()
    assert not report.ok
    report.check("one", True, "1")
    assert report.ok
    report.check("two", False, "0")
    assert not report.ok
