"""docs/frameworks.md is true: each of its examples leaves the messages that it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tenantq

ROOT = Path(__file__).resolve().parents[2]

EXAMPLES = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.parametrize(("number", "library"), [(0, "sqlite3"), (1, "sqlalchemy"), (2, "django")])
def test_an_example_commits_rows_messages_and_events(tmp_path: Path, number: int, library: str) -> None:
    assert len(EXAMPLES) == 3
    assert f"import {library}\n" in EXAMPLES[number] or f"from {library}." in EXAMPLES[number]
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with tenantq.open(tmp_path / "var" / "tenants", create=False) as store:
        acme = store.tenant("acme")
        assert tenantq.verify(acme.path).problems == ()
        (message,) = acme.peek("report.build")
        assert message.payload == {"month": "2026-11"}
        assert acme.stats().scheduled == 1
        (event,) = acme.outbox.read(0, limit=10, max_bytes=10**6)
        assert (event.topic, event.body) == ("billing.order_placed", '{"total":9900}')
        with acme.transaction() as tx:
            assert tx.execute("SELECT total FROM orders") == [(9900,)]
