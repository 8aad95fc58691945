"""Does the cost of a claim in Postgres grow under an unbroken load, and what holds it flat?

Messages come in and are handled at a fixed rate for a minute (`--minutes 60`: an hour), behind 100,000 that
wait (`--rows`). The documents' queue with Postgres's own autovacuum settings, with a VACUUM by hand in the
middle, and with their tuned settings; ours with the bridge's maintenance. Theirs and ours once more with a
snapshot held for the middle third, as a report or a forgotten transaction does. The rate is 2,000 a second
(`--rate`), or half of what the slowest carries. With `--rate 0 --rows 1200000` nothing comes in, and the
workers take what they can: the documents' own minute, whose rate fell to a third with the stock settings.

Left out: what the workers do, and other load on the server. A claim of ours brings 10 messages, theirs one,
and what is timed is a claim. A minute is six slices of ten seconds, and longer loads have slices of a minute;
the figures of growth are for an hour.
"""

from __future__ import annotations

import importlib

import msgspec

from bench._children import Crew, reason_of
from bench._claimers import DOCUMENTS, open_queue, prepare
from bench._jobs_table import STOCK, TUNED, TUNED_SERVER
from bench._measure import Ratio, paired
from bench._options import Options
from bench._report import Figure, Result, Row
from bench._servers import Server, server
from bench._steady import Load, Slices, size_of, slices_of, start
from bench._watch import Table, Watch

WORKERS = 8
BATCH = 10

SLICES = 6

SAMPLES = 5
"""Of the sizes, in a slice."""

SHARE = 0.5
"""Of what the slowest carries: more would measure waiting."""

TENANTQ = "tenantq"

TABLES = {DOCUMENTS[1]: "jobs", TENANTQ: "tenantq.ready"}


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One load."""

    name: str
    claimer: str
    is_tuned: bool = True
    is_held: bool = False
    is_vacuumed: bool = False


ARMS = (
    Arm(name="documents' queue, stock", claimer=DOCUMENTS[1], is_tuned=False),
    Arm(name="documents' queue, stock, vacuum by hand", claimer=DOCUMENTS[1], is_tuned=False, is_vacuumed=True),
    Arm(name="documents' queue, tuned", claimer=DOCUMENTS[1]),
    Arm(name="tenantq", claimer=TENANTQ),
    Arm(name="documents' queue, tuned, snapshot held", claimer=DOCUMENTS[1], is_held=True),
    Arm(name="tenantq, snapshot held", claimer=TENANTQ, is_held=True),
)


class Trial(msgspec.Struct, kw_only=True):
    """What one load found."""

    slices: Slices
    table: Table
    put: int
    taken: int
    seconds: float
    verdict: str = ""
    """Of `tenantq bridge health`, at the end and before the load stops; for a queue of ours."""

    @property
    def thirds(self) -> tuple[int, int]:
        """The slices between which the middle third lies."""
        count = len(self.slices.taken)
        return count // 3, count - count // 3


def run(options: Options) -> Result:
    seconds = options.pick(options.minutes * 60, 1.8)
    count = max(SLICES, int(seconds // 60))
    backlog = options.pick(options.rows, 500)
    result = Result(rows=[], parameters={"load_seconds": seconds, "slice_seconds": seconds / count})
    found: dict[str, Trial] = {}
    arms = [arm for arm in options.pick(ARMS, ARMS[2:4] + ARMS[5:]) if options.only in arm.name]
    with server(options) as postgres:
        for number, claimer in enumerate(TABLES):
            postgres.query(f"CREATE DATABASE full_{number}")
            prepare(postgres, f"full_{number}", claimer, backlog)
        rate = options.pick(options.rate, 200.0)
        if rate:
            measured = {arm.claimer for arm in arms}
            rate = min(rate, SHARE * min(carried(postgres, name, options) for name in measured))
        result.parameters |= {
            "postgres": postgres.version,
            "rate": round(rate),
            "backlog": backlog,
            "workers": WORKERS,
            "batch": BATCH,
        }
        for arm in arms:
            try:
                found[arm.name] = measure(postgres, arm, rate, seconds=seconds, count=count, options=options)
                if found[arm.name].verdict:
                    result.notes.append(f"{arm.name}: `tenantq bridge health` says {found[arm.name].verdict}")
            except Exception as exc:
                result.notes.append(f"{arm.name}: {reason_of(exc)}")
    result.rows = [row_of(arm.name, found.get(arm.name)) for arm in arms]
    for arm in arms:
        if arm.name in found:
            result.ratios += ratios_of(arm, found[arm.name], is_long=options.minutes >= 60)
    result.notes.append(
        "2nd and last are slices, first, middle and end are thirds; the backlog is what it grew by"
    )
    if rate < options.rate and not options.is_smoke:
        result.notes.append(f"{options.rate:,.0f} a second is more than half of what this machine carries now")
    result.figure = figure_of(found, seconds, count)
    return result


def load_of(claimer: str, dsn: str, rate: float, slice_seconds: float) -> Load:
    """Return the load of one claimer."""
    return Load(
        claimer=claimer,
        dsn=dsn,
        rate=rate,
        slice_seconds=slice_seconds,
        workers=WORKERS,
        batch=1 if claimer in DOCUMENTS else BATCH,
        is_maintained=claimer not in DOCUMENTS,
    )


def carried(postgres: Server, claimer: str, options: Options) -> float:
    """Return how many messages a second the workers take out when nothing holds them back."""
    with (
        postgres.database("trial", template=f"full_{list(TABLES).index(claimer)}") as dsn,
        options.directory() as place,
    ):
        load = load_of(claimer, dsn, 0, 1_000)
        with Crew(size_of(load), place / "logs") as crew:
            start(crew, load)
            crew.go(options.warm_up)
            window = crew.measure(options.window)
            crew.stop()
    return sum(window.counts) / window.seconds


def measure(postgres: Server, arm: Arm, rate: float, *, seconds: float, count: int, options: Options) -> Trial:
    """Run one load."""
    postgres.configure(TUNED_SERVER if arm.is_tuned else STOCK)
    template = f"full_{list(TABLES).index(arm.claimer)}"
    with postgres.database("trial", template=template) as dsn, options.directory() as place:
        if arm.is_tuned and arm.claimer in DOCUMENTS:
            postgres.query(TUNED, "trial")
        load = load_of(arm.claimer, dsn, rate, seconds / count)
        third = count // 3 * seconds / count
        with Crew(size_of(load), place / "logs") as crew:
            start(crew, load)
            crew.go(options.warm_up)
            with Watch(
                dsn,
                TABLES[arm.claimer],
                interval=seconds / count / SAMPLES,
                hold=(third, seconds - third) if arm.is_held else None,
                vacuum_at=seconds / 2 if arm.is_vacuumed else None,
            ) as watch:
                window = crew.measure(seconds)
            verdict = verdict_of(dsn) if arm.claimer == TENANTQ else ""
            logs = crew.stop()
    return Trial(
        slices=slices_of(logs, count),
        table=watch.table,
        put=window.counts[load.workers] if rate else 0,
        taken=sum(window.counts[: load.workers]),
        seconds=window.seconds,
        verdict=verdict,
    )


def verdict_of(dsn: str) -> str:
    """Return what the bridge itself says of its tables."""
    queue = open_queue(dsn)
    try:
        health = importlib.import_module("tenantq_bridge").read_health(queue)
    finally:
        queue.close()
    return f"{health.verdict.value}: {health.reason}"


def row_of(name: str, trial: Trial | None) -> Row:
    """Return one line of the table; None for what could not be measured.

    2nd and last are slices of the time, the p50 are those of its thirds. The backlog is by how much it grew, the
    dead rows are the most there were.
    """
    columns = (
        "per_s",
        "per_s_2nd",
        "per_s_last",
        "p99_2nd_ms",
        "p99_last_ms",
        "p50_first_ms",
        "p50_middle_ms",
        "p50_end_ms",
        "backlog",
        "dead_rows",
        "vacuums",
        "heap_mb",
        "indexes_mb",
    )
    if trial is None:
        return {"load": name, **dict.fromkeys(columns)}
    slices, (first, last) = trial.slices, trial.thirds
    end = len(slices.taken) - 1
    sizes = trial.table.peaks(trial.seconds * end / (end + 1), float("inf"))
    heap = sizes.pop(trial.table.name, 0)
    length = trial.seconds / (end + 1)
    values = (
        round(trial.taken / trial.seconds),
        round(slices.taken[1] / length),
        round(slices.taken[end] / length),
        slices.percentile_ms(1, 99),
        slices.percentile_ms(end, 99),
        slices.between_ms(0, first, 50),
        slices.between_ms(first, last, 50),
        slices.between_ms(last, end + 1, 50),
        trial.put - trial.taken if trial.put else None,
        trial.table.most_dead,
        trial.table.vacuums,
        heap / 1e6,
        sum(sizes.values()) / 1e6,
    )
    return {"load": name, **dict(zip(columns, values, strict=True))}


def ratios_of(arm: Arm, trial: Trial, *, is_long: bool) -> list[Ratio]:
    """Return what is to be reached, where it is ours, and the same of theirs beside."""
    slices, (first, last) = trial.slices, trial.thirds
    end = len(slices.taken) - 1
    # At the machine's limit a claim waits for the others, and nothing is to be reached.
    is_judged = arm.claimer == TENANTQ and trial.put > 0
    found: list[tuple[str, float, float, float | None, float | None]] = []
    if arm.is_held:
        during, before = slices.between_ms(first, last, 50), slices.between_ms(0, first, 50)
        found.append(("claim p50, while the snapshot is held / before", during, before, None, 1.5))
        found.append(("taken out / come in", trial.taken, trial.put, 0.99, None))
    else:
        unit = "minute" if is_long else "slice"
        p99 = slices.percentile_ms(end, 99), slices.percentile_ms(1, 99)
        found.append((f"claim p99, the last {unit} / the second", *p99, None, 1.2))
        length = trial.seconds / (end + 1)
        quarter = (end + 1) // 4
        then = trial.table.peaks((quarter - 1) * length, quarter * length)
        now = trial.table.peaks(end * length, float("inf"))
        where = "the 15th minute" if is_long else "a quarter of the time"
        found += [
            (f"bytes of {name}, at the end / in {where}", now[name], then[name], None, 1.2 if is_long else None)
            for name in now
            if then.get(name)
        ]
    return [
        paired(
            f"{arm.name}: {name}",
            [above],
            [below],
            at_least=at_least if is_judged else None,
            at_most=at_most if is_judged else None,
        )
        for name, above, below, at_least, at_most in found
        if above and below
    ]


def figure_of(found: dict[str, Trial], seconds: float, count: int) -> Figure:
    """Return the median of the claims over time."""
    return Figure(
        title="A claim under an unbroken load",
        x_label="seconds",
        y_label="p50, milliseconds",
        x=[round((number + 1) * seconds / count, 1) for number in range(count)],
        series={
            name: [trial.slices.percentile_ms(number, 50) or None for number in range(count)]
            for name, trial in found.items()
        },
        is_log=True,
        lower_is_better=True,
    )
