"""Triggering inside the caller's own transaction, with the real libraries."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import pytest_asyncio
import sqlalchemy
from msgspec.structs import replace
from psycopg import sql

from borrowers import POSTGRES, SQLITE, Borrower, path_of
from fix_app import QUICK
from perdure import App, RunHandle, Task
from perdure.errors import (
    IdempotencyConflict,
    InvalidInput,
    InvalidPayload,
    RunNotFound,
    SchemaMismatch,
)
from waiting import MAX_WAIT_S

SLOW_POLL = replace(QUICK, poll=timedelta(minutes=30), lease_ttl=timedelta(minutes=50))
"""A worker with these defaults finds a run before the test ends only if a hint wakes it."""


class Shop:
    """An app whose task says what it was told, and a way to look at its runs."""

    def __init__(self, url: str) -> None:
        self.app = App(url, defaults=QUICK)
        self.ship: Task[[int], int] = self.app.task(ship)

    async def exists(self, handle: RunHandle[Any]) -> bool:
        async with self.app:
            try:
                await self.app.runs.get(handle.id)
            except RunNotFound:
                return False
        return True


def ship(order: int) -> int:
    return 10 * order


@pytest.fixture(params=[*POSTGRES, *SQLITE])
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def library_url(library: str, request: pytest.FixtureRequest) -> str:
    adapter = "postgres" if library in POSTGRES else "sqlite"
    url: str = request.getfixturevalue(f"{adapter}_storage_url")
    return url


@pytest_asyncio.fixture
async def place(library: str, library_url: str) -> AsyncIterator[tuple[Shop, Borrower]]:
    """A shop, and somebody with a connection to its database."""
    async with (POSTGRES | SQLITE)[library](library_url) as borrower:
        yield Shop(library_url), borrower


Place = tuple[Shop, Borrower]


async def test_rolled_back_means_never_existed(place: Place) -> None:
    shop, caller = place
    await caller.begin()
    handle = await caller.trigger(shop.ship, 1)
    await caller.rollback()

    assert not await shop.exists(handle)


async def test_committed_with_what_else_was_written(place: Place) -> None:
    shop, caller = place
    await caller.begin()
    await caller.execute("CREATE TABLE orders (id integer)")
    await caller.execute("INSERT INTO orders VALUES (1)")
    handle = await caller.trigger(shop.ship, 1)
    await caller.commit()

    assert handle.created
    assert await shop.exists(handle)
    async with shop.app.run_all():
        assert await shop.app.runs.handle(handle.id).result(MAX_WAIT_S) == 10


async def test_committed_means_it_runs_at_once(place: Place) -> None:
    shop, caller = place
    slow = App(shop.app.url, defaults=SLOW_POLL)
    task = slow.task(ship)
    async with slow, slow.worker(concurrency=1):
        await slow.runs.list()
        await caller.begin()
        handle = await caller.trigger(task, 4)
        await caller.commit()

        async with asyncio.timeout(MAX_WAIT_S):
            assert await handle.result() == 40


async def test_a_savepoint_takes_back_only_what_came_after_it(place: Place) -> None:
    shop, caller = place
    await caller.begin()
    kept = await caller.trigger(shop.ship, 1)
    await caller.execute("SAVEPOINT second_thoughts")
    dropped = await caller.trigger(shop.ship, 2)
    await caller.execute("ROLLBACK TO SAVEPOINT second_thoughts")
    also_kept = await caller.trigger(shop.ship, 3)
    await caller.commit()

    assert await shop.exists(kept)
    assert await shop.exists(also_kept)
    assert not await shop.exists(dropped)


async def test_a_key_that_is_taken_answers_with_its_owner(place: Place) -> None:
    shop, caller = place
    async with shop.app:
        owner = await shop.ship.options(idempotency_key="order-1").trigger(1)
    await caller.begin()
    again = await caller.trigger(shop.ship.options(idempotency_key="order-1"), 1)
    twice = [await caller.trigger(shop.ship.options(singleton_key="s"), 2) for _ in range(2)]
    await caller.commit()

    assert (again.id, again.outcome) == (owner.id, "returned_existing")
    assert [handle.outcome for handle in twice] == ["created", "returned_existing"]
    assert twice[0].id == twice[1].id


async def test_a_key_with_another_payload_is_refused_and_spoils_nothing(place: Place) -> None:
    shop, caller = place
    async with shop.app:
        await shop.ship.options(idempotency_key="order-1").trigger(1)
    await caller.begin()
    with pytest.raises(IdempotencyConflict):
        await caller.trigger(shop.ship.options(idempotency_key="order-1"), 2)
    with pytest.raises(InvalidPayload):
        await caller.trigger(shop.ship, "two")
    handle = await caller.trigger(shop.ship, 3)
    await caller.commit()

    assert await shop.exists(handle)


async def test_a_key_rolled_back_is_free_again(place: Place) -> None:
    shop, caller = place
    keyed = shop.ship.options(idempotency_key="order-1")
    await caller.begin()
    await caller.trigger(keyed, 1)
    await caller.rollback()

    async with shop.app:
        assert (await keyed.trigger(2)).created


async def test_many_at_once(place: Place) -> None:
    shop, caller = place
    await caller.begin()
    items: list[dict[str, Any]] = [{"order": n} for n in range(50)]
    results = await caller.trigger_many(shop.ship.options(tags={"a": "b"}), [*items, {"oder": 1}])
    await caller.commit()

    handles = [result for result in results if isinstance(result, RunHandle)]
    assert len(handles) == 50
    assert isinstance(results[-1], InvalidPayload)
    async with shop.app:
        page = await shop.app.runs.list(tag=("a", "b"), limit=100)
    assert {run.id for run in page.runs} == {handle.id for handle in handles}
    assert len({run.batch_id for run in page.runs}) == 1


# What will not do


async def test_autocommit_is_refused_on_postgresql(postgres_storage_url: str) -> None:
    shop = Shop(postgres_storage_url)
    engine = sqlalchemy.create_engine(
        postgres_storage_url.replace("postgresql:", "postgresql+psycopg:"),
        isolation_level="AUTOCOMMIT",
    )
    ours = psycopg2.connect(postgres_storage_url)
    ours.autocommit = True
    plain = await asyncpg.connect(postgres_storage_url)

    with (
        psycopg.connect(postgres_storage_url, autocommit=True) as connection,
        engine.connect() as alchemy,
    ):
        for refused in (connection, ours, alchemy):
            with pytest.raises(InvalidInput, match="no transaction is open"):
                shop.ship.using(refused).trigger_sync(1)
        with pytest.raises(InvalidInput, match="no transaction is open"):
            await shop.ship.using(plain).trigger(1)
        with connection.transaction():
            handle = shop.ship.using(connection).trigger_sync(1)
    ours.close()
    await plain.close()
    engine.dispose()
    assert await shop.exists(handle)


def test_autocommit_is_refused_on_sqlite(sqlite_storage_url: str) -> None:
    shop = Shop(sqlite_storage_url)
    connection = sqlite3.connect(path_of(sqlite_storage_url), isolation_level=None)

    with pytest.raises(InvalidInput, match="no transaction is open"):
        shop.ship.using(connection).trigger_sync(1)
    connection.execute("BEGIN")
    assert shop.ship.using(connection).trigger_sync(1).created
    connection.rollback()
    connection.close()


async def test_django_outside_of_atomic_is_refused(sqlite_storage_url: str) -> None:
    shop = Shop(sqlite_storage_url)
    async with SQLITE["django sqlite"](sqlite_storage_url) as caller:
        with pytest.raises(InvalidInput, match=r"transaction\.atomic"):
            await caller.trigger(shop.ship, 1)


def test_a_database_without_our_tables_is_refused(
    postgres_url: str, postgres_storage_url: str
) -> None:
    shop = Shop(postgres_storage_url)

    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(InvalidInput, match="no tables of Perdure; connect to the app's database"),
    ):
        shop.ship.using(connection).trigger_sync(1)


def test_another_file_is_refused(sqlite_storage_url: str, tmp_path: Path) -> None:
    shop = Shop(sqlite_storage_url)
    other = sqlite3.connect(tmp_path / "other.db")
    memory = sqlite3.connect(":memory:")

    with pytest.raises(InvalidInput, match=r"other\.db, but the app's runs are kept in .*runs\.db"):
        shop.ship.using(other).trigger_sync(1)
    with pytest.raises(InvalidInput, match="a database in memory"):
        shop.ship.using(memory).trigger_sync(1)
    other.close()
    memory.close()


def test_another_kind_of_database_is_refused(
    sqlite_storage_url: str, postgres_storage_url: str
) -> None:
    connection = sqlite3.connect(path_of(sqlite_storage_url))

    with pytest.raises(InvalidInput, match="kept in PostgreSQL"):
        Shop(postgres_storage_url).ship.using(connection).trigger_sync(1)
    connection.close()
    with (
        psycopg.connect(postgres_storage_url) as other,
        pytest.raises(InvalidInput, match="kept in sqlite:"),
    ):
        Shop(sqlite_storage_url).ship.using(other).trigger_sync(1)


def test_an_older_schema_is_refused(sqlite_storage_url: str) -> None:
    connection = sqlite3.connect(path_of(sqlite_storage_url))
    connection.execute("PRAGMA user_version = 0")

    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        Shop(sqlite_storage_url).ship.using(connection).trigger_sync(1)
    connection.close()


def test_on_sqlite_the_write_lock_comes_before_the_first_read(sqlite_storage_url: str) -> None:
    """A deferred transaction that had read would be refused if somebody wrote after that."""
    shop = Shop(sqlite_storage_url)
    other = sqlite3.connect(path_of(sqlite_storage_url), isolation_level=None)
    connection = sqlite3.connect(path_of(sqlite_storage_url), isolation_level=None)
    seen: list[str] = []

    def meddle(statement: str) -> None:
        if statement.startswith("UPDATE perdure_keys"):
            other.execute("CREATE TABLE IF NOT EXISTS something (id INTEGER)")
            seen.append(statement)

    connection.set_trace_callback(meddle)
    connection.execute("BEGIN DEFERRED")
    assert shop.ship.using(connection).trigger_sync(1).created
    connection.commit()
    assert len(seen) == 1
    other.close()
    connection.close()


def test_a_file_that_was_never_migrated_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "new.db")

    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        Shop(f"sqlite:///{tmp_path / 'new.db'}").ship.using(connection).trigger_sync(1)
    connection.close()


def test_what_is_no_connection_is_refused(sqlite_storage_url: str) -> None:
    with pytest.raises(InvalidInput, match=r"builtins\.str is not a connection of psycopg"):
        Shop(sqlite_storage_url).ship.using("postgresql://").trigger_sync(1)


async def test_an_async_connection_cannot_be_used_without_await(
    postgres_storage_url: str,
) -> None:
    shop = Shop(postgres_storage_url)

    async with POSTGRES["psycopg async"](postgres_storage_url) as caller:
        with pytest.raises(InvalidInput, match="can only be awaited"):
            shop.ship.using(caller.connection).trigger_sync(1)


async def test_a_sync_connection_may_be_used_in_async_code(storage_url: str) -> None:
    shop = Shop(storage_url)
    opener = SQLITE["sqlite3"] if storage_url.startswith("sqlite") else POSTGRES["psycopg"]
    async with opener(storage_url) as caller:
        handle = await shop.ship.using(caller.connection).trigger(1)
        await caller.commit()

    assert await shop.exists(handle)


async def test_our_tables_are_found_off_the_search_path(postgres_storage_url: str) -> None:
    shop = Shop(postgres_storage_url)
    with psycopg.connect(postgres_storage_url) as connection:
        connection.execute("CREATE SCHEMA theirs")
        connection.execute("CREATE TABLE theirs.runs (id integer)")
        connection.execute(sql.SQL("SET search_path = theirs"))
        keyed = shop.ship.options(idempotency_key="k", tags={"a": "b"})
        handle = keyed.using(connection).trigger_sync(1)

    assert await shop.exists(handle)


async def test_a_run_can_be_continued_in_a_transaction(storage_url: str) -> None:
    shop = Shop(storage_url)
    opener = SQLITE["sqlite3"] if storage_url.startswith("sqlite") else POSTGRES["psycopg"]
    async with shop.app.run_all():
        first = await shop.ship.trigger(1)
        await first.result(MAX_WAIT_S)
        async with opener(storage_url) as caller:
            await caller.begin()
            following = shop.ship.options(continuation_of=first.id)
            second = await caller.trigger(following, 2)
            await caller.commit()
        assert await second.result(MAX_WAIT_S) == 20
        assert (await second.get()).continuation_of == first.id
