from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import tenantq.aio
from tests.aio.running import run


@pytest.fixture(autouse=True)
def nothing_leaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that leaves a task, an error nobody saw, or a thread behind."""
    with caplog.at_level(logging.WARNING, "asyncio"):
        yield
        gc.collect()
    assert [record.getMessage() for record in caplog.get_records("call") if record.name == "asyncio"] == []
    for thread in threading.enumerate():
        if thread.name.startswith("tenantq-aio"):
            thread.join(30)
            assert not thread.is_alive(), thread


@pytest.fixture
def with_store(tmp_path: Path) -> Callable[..., None]:
    """Run a test's coroutine with an open store, in an event loop of its own."""

    def with_store(body: Callable[[tenantq.aio.Store], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def main() -> None:
            async with tenantq.aio.open(tmp_path / "store", **options) as store:
                await body(store)

        run(main())

    return with_store
