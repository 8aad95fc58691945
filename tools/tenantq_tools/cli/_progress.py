"""A progress bar for work that can take longer than a glance, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress"]


@contextlib.contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show how far the work is, and give a function that advances it; without a total, that it goes on.

    It is shown on standard error and removed at the end: it never mixes with a result.
    """
    if not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console  # noqa: PLC0415 - half of a short command's time
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        # What is printed meanwhile goes above the bar; a result that goes to a file must not come here.
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda step: bar.advance(task, step)
