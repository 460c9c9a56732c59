"""The kit on PostgreSQL: what only a real server shows, and what its time must be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from perdure import App, Context, Retry
from perdure.errors import InvalidInput
from perdure.storage.postgres import inline_wait
from perdure.testing import Kit, point

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

TIMES = "SELECT now(), transaction_timestamp(), statement_timestamp(), clock_timestamp()"


@pytest.fixture
def perdure_database() -> str:
    return "postgres"


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    return perdure_kit


@pytest.fixture
def app(perdure_app: App) -> App:
    return perdure_app


@pytest.fixture
def session(kit: Kit) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the code under test."""
    with psycopg.connect(kit.url) as connection:
        yield connection
        connection.rollback()


def orders_of(kit: Kit) -> list[Any]:
    return [row[0] for row in kit.connection.execute("SELECT name FROM orders ORDER BY name")]


# Time


def test_every_session_sees_the_time_of_the_kit(kit: Kit, session: psycopg.Connection[Any]) -> None:
    session.autocommit = True
    first = session.execute(TIMES).fetchone()
    kit.advance(HOUR)
    second = session.execute(TIMES).fetchone()

    assert first == (START,) * 4
    assert second == (START + HOUR,) * 4


def test_now_stands_still_within_a_transaction(kit: Kit, session: psycopg.Connection[Any]) -> None:
    session.execute("SELECT 1")
    kit.advance(HOUR)
    late = START + HOUR

    assert session.execute(TIMES).fetchone() == (START, START, late, late)


def test_a_default_of_a_table_takes_the_time_of_the_kit(kit: Kit) -> None:
    kit.connection.execute("CREATE TABLE notes (id int, at timestamptz DEFAULT now())")
    kit.advance(HOUR)
    kit.connection.execute("INSERT INTO notes VALUES (1)")

    assert kit.connection.execute("SELECT at FROM notes").fetchall() == [(START + HOUR,)]


def test_a_handler_writes_the_instant_at_which_it_runs(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE orders (name text, at timestamptz)")

    @app.task
    async def book(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES ('A', now())")

    book.options(delay=HOUR).trigger_sync()
    kit.run_until_done()

    found = kit.connection.execute("SELECT at FROM orders").fetchall()
    assert found == [(START + HOUR,)]


# What only PostgreSQL can do


def test_transactions_speak_postgresql(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE orders (name text PRIMARY KEY, data jsonb, n int)")
    upsert = (
        "INSERT INTO orders VALUES (%s, %s::jsonb, 1)"
        " ON CONFLICT (name) DO UPDATE SET n = orders.n + 1 RETURNING n, data ->> 'city'"
    )

    @app.task
    async def book(ctx: Context, name: str) -> list[Any]:
        async with ctx.transaction() as connection:
            found = await connection.execute(upsert, (name, '{"city": "Köln"}'))
            return list(await found.fetchone())

    @app.task
    def book_def(ctx: Context, name: str) -> list[Any]:
        with ctx.transaction() as connection:
            return list(connection.execute(upsert, (name, "{}")).fetchone())

    assert kit.execute(book, "A").result == [1, "Köln"]
    assert kit.execute(book_def, "A").result == [2, "Köln"]


def test_a_failed_handler_leaves_nothing_behind(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE orders (name text)")

    @app.task(retry=Retry(max_attempts=1))
    def book(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO orders VALUES ('A')")
            raise ValueError("no")

    kit.assert_failed(kit.execute(book).run, type=ValueError)
    assert orders_of(kit) == []


# Runs in transactions of the code under test


def test_a_run_of_a_session_exists_once_that_commits(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE orders (name text)")

    @app.task
    def ship(order: str) -> str:
        return order

    kit.advance(HOUR)
    engine = create_engine(kit.url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES ('A')"))
        ship.using(session).trigger_sync("A")
        session.rollback()
        session.execute(text("INSERT INTO orders VALUES ('B')"))
        ship.using(session).trigger_sync("B")
        before = kit.triggered(ship)
        session.commit()
    engine.dispose()
    kit.run_until_idle()

    assert before == []
    assert orders_of(kit) == ["B"]
    run = kit.assert_triggered(ship, {"order": "B"}, times=1)
    kit.assert_succeeded(run, result="B")
    assert run.created_at == START + HOUR


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_async_session_works_in_a_handler_and_its_run_is_executed_too(
    kit: Kit, app: App, driver: str
) -> None:
    kit.connection.execute("CREATE TABLE orders (name text)")
    url = kit.url.replace("postgresql://", f"postgresql+{driver}://")

    @app.task
    async def ship(order: str) -> str:
        return order

    @app.task
    async def order(name: str) -> None:
        engine = create_async_engine(url)
        async with AsyncSession(engine) as session:
            await session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})
            await ship.using(session).trigger(name)
            await session.commit()
        await engine.dispose()
        await asyncio.sleep(60)

    order.trigger_sync("A")
    kit.run_until_idle()

    shipped = kit.assert_succeeded(kit.assert_triggered(ship, times=1), result="A")
    assert shipped.started_at == START  # not only when the worker looks again


def test_a_plain_connection_of_a_driver_carries_runs(kit: Kit, app: App) -> None:
    @app.task
    def ship(order: str) -> None: ...

    async def order() -> None:
        connection = await asyncpg.connect(kit.url)
        async with connection.transaction():
            await ship.using(connection).trigger("A")
        await connection.close()

    kit.run(order())
    with kit.connection.transaction():
        ship.using(kit.connection).trigger_sync("B")
    kit.run_until_idle()

    assert [run.payload["order"] for run in kit.triggered(ship)] == ["A", "B"]
    assert {run.status for run in kit.triggered(ship)} == {"succeeded"}


# Locks and crashes


def test_a_killed_worker_leaves_no_lock_and_no_row(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE orders (name text PRIMARY KEY)")

    @app.task
    async def book(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES ('A')")
            point("written")
            await asyncio.sleep(5)

    run = book.trigger_sync()
    kit.crash_at_point("written")
    kit.run_until_idle()
    after_the_crash = orders_of(kit)
    kit.connection.execute("INSERT INTO orders VALUES ('A')")  # it would wait for the lock
    kit.connection.execute("DELETE FROM orders")
    kit.run_until_done()

    assert after_the_crash == []
    assert orders_of(kit) == ["A"]
    assert kit.get(run).counters.attempts == 2


def test_a_handler_waits_for_the_row_that_another_one_holds(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE stock (n int); INSERT INTO stock VALUES (0)")
    seen: list[tuple[int, datetime]] = []

    @app.task
    async def take(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            found = await connection.execute("UPDATE stock SET n = n + 1 RETURNING n")
            [n] = await found.fetchone()
            seen.append((n, kit.now))
            await asyncio.sleep(10)

    for _ in range(3):
        take.trigger_sync()
    kit.run_until_idle()

    assert seen == [(n + 1, START + timedelta(seconds=10 * n)) for n in range(3)]
    assert {run.counters.attempts for run in kit.triggered(take)} == {1}


def test_waiting_for_another_handler_costs_no_real_time_limit(kit: Kit, app: App) -> None:
    seen: list[Any] = []

    @app.task
    async def look(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            found = await connection.execute("SHOW lock_timeout")
            seen.append(await found.fetchone())

    kit.execute(look)
    kit.execute(look)  # in the session of the first one, which was reset

    assert seen == [("0",), ("0",)]


def test_a_row_that_the_test_holds_fails_the_statement(
    kit: Kit, app: App, session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_wait, "MAX_LOCK_CHECKS", 3)
    kit.connection.execute("CREATE TABLE stock (n int); INSERT INTO stock VALUES (0)")
    session.execute("UPDATE stock SET n = n + 1")

    @app.task(retry=Retry(max_attempts=1))
    async def take(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("UPDATE stock SET n = n + 1")

    kit.assert_failed(kit.execute(take).run, match="a session of the test holds")


def test_a_timeout_ends_the_wait_for_a_row(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE stock (n int); INSERT INTO stock VALUES (0)")

    @app.task(timeout=30, retry=Retry(max_attempts=1))
    async def take(ctx: Context, seconds: int) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("UPDATE stock SET n = n + 1")
            await asyncio.sleep(seconds)

    slow = take.options(timeout=100).trigger_sync(60)
    quick = take.trigger_sync(0)
    kit.run_until_idle()

    kit.assert_succeeded(slow)
    kit.assert_failed(quick, kind="timeout")
    assert kit.connection.execute("SELECT n FROM stock").fetchall() == [(1,)]


def test_a_deadlock_costs_one_of_the_two_an_attempt(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE stock (id int, n int)")
    kit.connection.execute("INSERT INTO stock VALUES (1, 0), (2, 0)")
    update = "UPDATE stock SET n = n + 1 WHERE id = %s"

    @app.task
    async def move(ctx: Context, first: int, second: int) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(update, (first,))
            await asyncio.sleep(1)
            await connection.execute(update, (second,))

    runs = [move.trigger_sync(1, 2), move.trigger_sync(2, 1)]
    kit.run_until_done()

    for run in runs:
        kit.assert_succeeded(run)
    assert sorted(kit.get(run).counters.attempts for run in runs) == [1, 2]
    assert kit.connection.execute("SELECT n FROM stock").fetchall() == [(2,), (2,)]


def test_what_would_wait_for_ever_is_refused_and_says_why(kit: Kit, app: App) -> None:
    kit.connection.execute("CREATE TABLE stock (n int); INSERT INTO stock VALUES (0)")

    @app.task
    async def take(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("UPDATE stock SET n = n + 1")
            point("taken")
            await asyncio.sleep(10)

    @app.task(retry=Retry(max_attempts=1))
    def take_def(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("UPDATE stock SET n = n + 1")

    slow = take.trigger_sync()
    kit.run_to_point("taken")
    quick = take_def.trigger_sync()
    kit.run_until_done()

    kit.assert_succeeded(slow)
    kit.assert_failed(quick, match="holds; under the testing kit")


# From test to test


def test_nothing_of_a_test_is_left_for_the_next_one() -> None:
    with Kit(database="postgres") as kit:
        made = kit.app.task(name="noop")(_noop).trigger_sync().id
        for statement in (
            "CREATE TYPE colour AS ENUM ('red')",
            "CREATE TABLE mine (id serial PRIMARY KEY, colour colour)",
            "CREATE TABLE changed (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
            "ALTER TABLE changed ADD COLUMN n int",  # its index is listed before it from now on
            "CREATE VIEW seen AS SELECT * FROM mine",
            "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE SCHEMA other",
            "CREATE TABLE other.mine (id int)",
            "CREATE INDEX mine_too ON perdure_runs (sequence)",
        ):
            kit.connection.execute(statement)
        left_open = psycopg.connect(kit.url)
        left_open.execute("INSERT INTO mine (colour) VALUES ('red')")
        before = kit._database._objects  # type: ignore[attr-defined]  # to be the same again
        url = kit.url
    with Kit(database="postgres") as kit:
        assert kit.url == url
        assert {oid for _, oid, _ in kit._database._read_objects()} == before  # type: ignore[attr-defined]  # as above
        assert kit.triggered() == []
        assert kit.app.task(name="noop")(_noop).trigger_sync().id == made
    left_open.close()


def _noop() -> None:
    pass


def test_two_kits_at_once_have_a_database_each() -> None:
    with Kit(database="postgres") as first, Kit(database="postgres") as second:
        first.app.task(name="noop")(_noop).trigger_sync()

        assert first.url != second.url
        assert (len(first.triggered()), second.triggered()) == (1, [])


def test_an_unknown_database_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be 'sqlite', 'postgres' or the URL"):
        Kit(database="mysql").__enter__()
