"""A tenant is kept quiet for a copy by coroutines as by threads, and a cancellation leaves no lock behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tenantq
import tenantq.aio
from tenantq.errors import UnknownTenant
from tests.aio.running import WithStore, turn


def test_a_copy_is_complete_and_calls_wait_for_its_end(with_store: WithStore, tmp_path: Path) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1)
        async with store.quiesce("acme") as path:
            waiting = asyncio.create_task(acme.enqueue("mail", 2))
            process = await asyncio.create_subprocess_exec("cp", path, tmp_path / "copy.db")
            assert await process.wait() == 0
            assert not waiting.done()
        assert await waiting == 2
        assert tenantq.verify(tmp_path / "copy.db").ready == 1
        with pytest.raises(UnknownTenant):
            async with store.quiesce("nobody"):
                pass

    with_store(body)


def test_a_cancelled_block_lets_the_writers_go_on(with_store: WithStore) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        acme = store.tenant("acme")
        await acme.enqueue("mail", 1)

        async def hold() -> None:
            async with store.quiesce("acme"):
                await asyncio.Event().wait()

        for turns in (0, 1, 50):
            task = asyncio.create_task(hold())
            await turn(turns)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await acme.enqueue("mail", 2)

    with_store(body)


def test_a_run_into_a_backup_directory_goes_beside_the_coroutines(with_store: WithStore, tmp_path: Path) -> None:
    async def body(store: tenantq.aio.Store) -> None:
        await store.tenant("acme").enqueue("mail", 1)
        directory = tenantq.BackupDirectory(tmp_path / "copies")
        summary = await asyncio.to_thread(directory.update, store.core)
        assert summary.taken == 1
        await store.delete("acme")
        await store.restore("acme", directory.find("acme").path)
        assert (await store.tenant("acme").stats()).ready == 1

    with_store(body)
