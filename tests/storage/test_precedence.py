"""The thread that writes goes first, and afterwards everything is as it was."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
import pytest_asyncio

import raw
from perdure.engine.clock import SystemClock
from perdure.errors import StorageRefused, StorageUnavailable
from perdure.storage.sqlite.precedence import LATE, SOON, Precedence
from perdure.storage.sqlite.storage import SqliteStorage
from perdure.storage.steps import Operation, Step, trip
from storage_kit import create

USUAL = 0.003


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def now() -> float:
    return round(sys.getswitchinterval(), 6)


def test_whoever_ends_last_leaves_it_as_it_was() -> None:
    precedence = Precedence()
    with precedence.taken():
        with precedence.taken():
            sys.setswitchinterval(LATE)
        assert now() == LATE
    assert now() == USUAL


def test_two_writers_at_once_do_not_take_each_others_setting_for_the_usual_one() -> None:
    precedence = Precedence()
    has_begun, may_end = threading.Event(), threading.Event()

    def write() -> None:
        with precedence.taken():
            sys.setswitchinterval(SOON)
            has_begun.set()
            may_end.wait()

    other = threading.Thread(target=write)
    other.start()
    has_begun.wait()
    with precedence.taken():
        may_end.set()
        other.join()
        assert now() == SOON

    assert now() == USUAL


@pytest_asyncio.fixture
async def storage(sqlite_storage_url: str) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(sqlite_storage_url.removeprefix("sqlite:///"), SystemClock())
    yield storage
    await storage.close()


async def test_a_write_leaves_it_as_it_was(storage: SqliteStorage) -> None:
    seen: list[float] = []
    storage._connection._on_statement = lambda name: seen.append(now())
    await storage.check_schema()
    assert now() == USUAL

    await create(storage)

    assert now() == USUAL
    assert seen[0] == USUAL  # nothing has been asked for yet
    assert set(seen[1:]) == {LATE}


async def test_a_write_that_fails_leaves_it_as_it_was(storage: SqliteStorage) -> None:
    def nonsense() -> Operation[None]:
        yield trip(Step("insert_batches", {"batch_id": None, "id": None}))

    with pytest.raises(StorageRefused):
        await storage._write(nonsense)

    assert now() == USUAL


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
        async with asyncio.timeout(30):
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


def test_a_forked_child_begins_anew() -> None:
    precedence = Precedence()
    with precedence.taken():
        sys.setswitchinterval(SOON)
        precedence.forget_the_parent()
        assert now() == USUAL
        with precedence.taken():
            pass


async def test_while_sqlite_works_the_writer_asks_for_its_turn_soon(
    storage: SqliteStorage,
) -> None:
    seen: list[float] = []
    connection = storage._connection.raw

    def look() -> None:
        connection.create_function("look", 0, lambda: seen.append(now()))
        connection.execute("SELECT look()")
        seen.append(now())
        connection.execute("CREATE TEMP TABLE looked (a)")
        connection.executemany("INSERT INTO looked SELECT look() WHERE ? > 0", [(1,)])
        seen.append(now())

    await storage._call(lambda: storage._writer.alone(look))

    assert seen == [SOON, LATE] * 2


async def test_an_operation_that_asks_for_nothing_has_its_answer(storage: SqliteStorage) -> None:
    def silent() -> Operation[str]:
        yield from ()
        return "nothing was needed"

    assert await storage._write(silent) == "nothing was needed"
