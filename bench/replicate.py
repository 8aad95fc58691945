"""What does it cost to have 200 tenants replicated within seconds: the hot set, or Litestream over all files?

Litestream alone is given the directory of the tenants, all of which it keeps open. The hot set is that of
`tenantq litestream run`: the same Litestream, told of the tenants that change. `barrier` is the time from a commit
until it is in the replica, a directory, when somebody waits for it; `ready_s` the time until all tenants, none of
which was replicated before, are. Processor, descriptors and memory are those of Litestream with nothing going
on, and of the supervisor's process for the processor.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

import tenantq
from bench._measure import median, paired, percentile
from bench._options import Options
from bench._plots import chart
from bench._report import Result, Row
from bench.resources import usage_of
from tenantq._litestream import LitestreamSilent, Running
from tenantq_tools.litestream import NotRegistered, ReplicaError, Settings, Supervisor
from tenantq_tools.litestream.binary import environment, find_binary
from tenantq_tools.litestream.control import Control

TENANTS = 200

ALONE, HOT, RESTING = "litestream over all", "hot set, all of them in it", "hot set, all at rest"

PATIENCE = 120.0
"""Seconds for a state that is waited for."""


def run(options: Options) -> Result:
    count = options.pick(TENANTS, 6)
    found: dict[str, list[Row]] = {ALONE: [], HOT: [], RESTING: []}
    barriers: dict[str, list[float]] = {ALONE: [], HOT: []}
    for _ in range(options.iterations):
        for contender in (alone, hot_set):
            with options.directory() as directory, tenantq.open(directory / "store") as store:
                tenants = [store.tenant(f"t{number}") for number in range(count)]
                for tenant in tenants:
                    tenant.enqueue("jobs", 0)
                for name, row in contender(directory, tenants, options):
                    found[name].append(row)
                    if name in barriers:
                        barriers[name].append(row["barrier_p50_ms"])
    keys = list(found[HOT][0])
    rows: list[Row] = [
        {"contender": name} | {key: median_of([row.get(key) for row in measured]) for key in keys}
        for name, measured in found.items()
    ]
    return Result(
        rows=rows,
        parameters={"tenants": count, "litestream": find_binary().version},
        ratios=[paired("a barrier in the hot set / with Litestream over all", barriers[HOT], barriers[ALONE])],
        figure=chart(
            [{"contender": row["contender"], "at": f"{count} tenants", "percent": row["idle_%"]} for row in rows],
            x="at",
            y="percent",
            by="contender",
            title="Processor while nothing happens",
            y_label="percent of one core",
            is_line=False,
            lower_is_better=True,
        ),
    )


def alone(directory: Path, tenants: list[tenantq.Tenant], options: Options) -> Iterator[tuple[str, Row]]:
    """Measure a Litestream that is given the directory."""
    root = directory / "store"
    running = Running(socket=str(directory / "s.sock"), root=str(root))
    config = directory / "litestream.yml"
    replica = msgspec.json.encode({"type": "file", "path": str(directory / "replica")}).decode()
    config.write_text(
        f"socket: {{enabled: true, path: {running.socket}}}\n"
        f"dbs: [{{dir: {root}, pattern: '*.db', recursive: true, watch: true, replica: {replica}}}]\n"
    )
    started = time.perf_counter()
    command = [str(find_binary().path), "replicate", "-config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment()) as child:
        control = Control(running)
        try:
            for tenant in tenants:
                wait_for(partial(is_sent, control, tenant))
            ready = time.perf_counter() - started
            yield ALONE, measure(control, tenants, child.pid, ready, options)
        finally:
            child.terminate()


def hot_set(directory: Path, tenants: list[tenantq.Tenant], options: Options) -> Iterator[tuple[str, Row]]:
    """Measure the supervisor, with all tenants in its hot set and with none."""
    settings = Settings(replica=f"file://{directory}/replica", hot=len(tenants), idle=3600)
    with tenantq.open(directory / "store", migrate=False) as store:
        supervisor = Supervisor(store, settings, find_binary())
        started = time.perf_counter()
        with supervisor:
            wait_for(lambda: supervisor.hot == len(tenants) and supervisor.is_settled)
            ready = time.perf_counter() - started
            running = Running.read(store.root)
            assert running is not None
            yield HOT, measure(Control(running), tenants, running.pid, ready, options)
            supervisor.idle = 0.0
            began = time.perf_counter()
            wait_for(lambda: supervisor.hot == 0)
            seconds = time.perf_counter() - began
            yield RESTING, {"let_go_s": seconds} | idle(running.pid, options)


def measure(control: Control, tenants: list[tenantq.Tenant], pid: int, ready: float, options: Options) -> Row:
    """Measure barriers, then what Litestream takes with nothing going on."""
    milliseconds = []
    for tenant in tenants:
        tenant.enqueue("jobs", 1)
        began = time.perf_counter()
        control.sync(tenant.path)
        milliseconds.append((time.perf_counter() - began) * 1000)
    milliseconds.sort()
    return {
        "ready_s": ready,
        "let_go_s": None,
        "barrier_p50_ms": percentile(milliseconds, 50),
        "barrier_p99_ms": percentile(milliseconds, 99),
        **idle(pid, options),
    }


def idle(pid: int, options: Options) -> Row:
    """Return what Litestream, and this process beside it, take with nothing going on."""
    time.sleep(options.pick(2.0, 0.1))  # what was under way
    seconds = options.window * 15  # whole rounds of what Litestream does each 30 s
    before, ours = usage_of([pid]), time.process_time()
    time.sleep(seconds)
    after = usage_of([pid])
    return {
        "idle_%": (after.cpu_seconds - before.cpu_seconds) / seconds * 100,
        "supervisor_idle_%": (time.process_time() - ours) / seconds * 100,
        "descriptors": len(list((Path("/proc") / str(pid) / "fd").iterdir())),
        "rss_mib": after.memory_mib,
    }


def is_sent(control: Control, tenant: tenantq.Tenant) -> bool:
    """Whether a Litestream that begins has the tenant, and all of it is in the replica."""
    with contextlib.suppress(LitestreamSilent, NotRegistered, ReplicaError):
        control.sync(tenant.path)
        return True
    return False


def wait_for(what: Callable[[], bool]) -> None:
    """Look again and again until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def median_of(values: list[float | None]) -> float | None:
    """Return the median of what was measured; None if nothing was."""
    there = [value for value in values if value is not None]
    return median(there) if there else None
