"""SQLite's writer: what fails leaves nothing, and nobody waits who need not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

import raw
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageUnavailable
from perdure.storage.sql.statements import Operation, Step, trip
from perdure.storage.sqlite.storage import SqliteStorage
from waiting import MAX_WAIT_S


@pytest_asyncio.fixture
async def storage(sqlite_storage_url: str) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(sqlite_storage_url.removeprefix("sqlite:///"), SystemClock())
    yield storage
    await storage.close()


async def test_a_write_that_fails_half_way_leaves_nothing(storage: SqliteStorage) -> None:
    def half() -> Operation[None]:
        yield trip(Step("insert_batches", {"batch_id": "half", "id": "run_1"}))
        raise ValueError("changed its mind")

    with pytest.raises(ValueError, match="its mind"):
        await storage._write(half)

    assert raw.execute(f"sqlite:///{storage.path}", "SELECT * FROM perdure_batches") == [[]]


async def test_readers_do_not_wait_for_a_handlers_transaction(storage: SqliteStorage) -> None:
    held = await storage.transactions().begin(timedelta(seconds=60))
    try:
        async with asyncio.timeout(MAX_WAIT_S):
            await storage.check_schema()
    finally:
        await held.rollback()


async def test_whoever_comes_while_a_storage_is_closed_is_told(storage: SqliteStorage) -> None:
    assert storage._threads is not None
    writer = storage._threads.writer
    closing = threading.Thread(target=writer.close)

    def slow() -> Operation[None]:
        closing.start()
        closing.join()
        yield trip(Step("read_time"))

    with pytest.raises(StorageUnavailable, match="closed"):
        writer.submit(slow)


async def test_an_operation_that_asks_for_nothing_has_its_answer(storage: SqliteStorage) -> None:
    def silent() -> Operation[str]:
        yield from ()
        return "nothing was needed"

    assert await storage._write(silent) == "nothing was needed"
