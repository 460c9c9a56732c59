"""The thread that writes goes first, and afterwards everything is as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageRefused
from perdure.storage.sql.statements import Operation, Step, trip
from perdure.storage.sqlite.storage import SqliteStorage
from perdure.storage.sqlite.switch_interval import LATE, SOON, Precedence
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
