"""Every benchmark runs, and its JSON line has what is promised. No time is judged."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import tenantq
from bench import _pg_peers, _stores, pg_peers
from bench.__main__ import names, question_of
from bench._options import Options
from bench._peers import PEERS, missing
from bench._programs import SYSTEM
from bench._servers import connect, server
from bench._watch import Watch

PROGRAMS = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
"""Where a Litestream may be."""

ROOT = Path(__file__).resolve().parents[2]

FIELDS = {"name", "question", "machine", "versions", "date", "parameters", "rows", "ratios", "notes"}

PLOTTED = {"consumers", "single"}
"""A line and bars are enough: the library that draws them takes long to import."""

HAS_PLOTS = importlib.util.find_spec("matplotlib") is not None


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("name", names())
def test_a_benchmark_runs_and_tells_what_it_found(name: str, tmp_path: Path) -> None:
    if name == "peers" and missing() == set(PEERS):
        pytest.skip("no peer is installed")
    if name == "replicate" and not shutil.which("litestream", path=PROGRAMS):
        pytest.skip("Litestream is not installed")
    plots = ("--plots", str(tmp_path)) if HAS_PLOTS and name in PLOTTED else ()
    done = bench(name, "--seconds", "1", "--iterations", "1", "--json", "--scratch", str(tmp_path), *plots)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert set(result) >= FIELDS
    assert result["name"] == name
    assert result["question"].endswith("?")
    assert result["rows"]
    assert len({tuple(row) for row in result["rows"]}) == 1, "all rows have the same columns"
    assert all(ratio["median"] > 0 for ratio in result["ratios"])
    assert {"cpu", "cores", "kernel", "filesystem"} <= set(result["machine"])
    assert {"tenantq", "python", "apsw", "sqlite"} <= set(result["versions"])
    if plots:
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.skipif(not SYSTEM.exists(), reason="the system has no Postgres")
def test_the_system_s_postgres_takes_the_embedded_one_s_place() -> None:
    done = bench("pg_retention", "--seconds", "1", "--iterations", "1", "--json", "--postgres", "system")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert f"{SYSTEM}/{result['parameters']['postgres'].split('.')[0]}" in map(str, SYSTEM.iterdir())


@pytest.mark.postgres
def test_a_snapshot_is_held_in_its_part_of_the_time_and_a_peer_that_fails_is_told_of_with_its_reason() -> None:
    with server(Options(seconds=1, iterations=1)) as postgres:
        with postgres.database("watched") as dsn, connect(dsn) as connection:
            connection.execute("CREATE TABLE jobs (id bigint PRIMARY KEY)")
            held = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            with Watch(dsn, "jobs", interval=0.01, hold=(0.0, 0.5)) as watch:
                connection.execute("INSERT INTO jobs VALUES (1)")
                while connection.execute(held).fetchone() == (0,):
                    pass
                while connection.execute(held).fetchone() == (1,):
                    pass
            assert {*watch.table.peaks(0, 60)} == {"jobs", "jobs_pkey"}
        with pytest.raises(pg_peers.PeerFailed, match="no such peer"):
            pg_peers.measure(postgres, "no such peer", 1, 1.0)
    assert _pg_peers.missing("documents' loop") is None


def test_a_store_that_is_kept_is_used_again_and_any_other_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stores, "KEPT", 4)
    options = Options(stores=str(tmp_path / "kept"), scratch=str(tmp_path))
    with _stores.stocked(4, options) as made, tenantq.open(made.path) as store:
        assert sorted(store.tenants()) == [f"tenant-{number}" for number in range(4)]
        assert store.tenant("tenant-0").stats().ready == 0
    with _stores.stocked(4, options) as again:
        assert again == made
    with _stores.stocked(3, options) as other:
        assert other.path.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_list_names_every_benchmark_with_its_question() -> None:
    done = bench("list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == names()
    assert all(question_of(name).endswith("?") for name in names())


@pytest.mark.skipif(not HAS_PLOTS, reason="plots need matplotlib")
def test_the_page_keeps_what_other_runs_found(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    for name in ("threads", "batched"):
        done = bench(name, "--seconds", "1", "--iterations", "1", "--json", "--write", str(page))
        assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert text.index("## batched") < text.index("## threads")
    assert (tmp_path / "plots" / "threads.svg").exists()
    assert len(page.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()) == 2
