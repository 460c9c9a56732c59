"""PostgreSQL restarts beside handlers that use `ctx.transaction()`: that counts no attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App, Context, Fail, Retry
from perdure.core.run.run import Run
from perdure.errors import RunFailed
from perdure.storage.postgres.storage import PostgresStorage
from perdure.testing.postgres import PrivatePostgres
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

INSERT = "INSERT INTO effects VALUES (%s)"
AT_ONCE = 6
PATIENT = replace(QUICK, lease_ttl=timedelta(seconds=30))
"""No lease may expire while the server restarts, however long that takes on a busy machine."""


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    """A server that nobody else minds losing."""
    with PrivatePostgres.start() as server:
        yield server


@pytest.fixture
def url(own_server: PrivatePostgres) -> Iterator[str]:
    yield own_server.create_database("outage")
    own_server.drop_database("outage")


class Pause:
    """Where handlers wait inside their transactions, on this loop or in threads, until let go."""

    def __init__(self, parties: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrivals = asyncio.Semaphore(0)
        self._parties = parties
        self._go, self._go_async = threading.Event(), asyncio.Event()

    def wait(self) -> None:
        self._loop.call_soon_threadsafe(self._arrivals.release)
        self._go.wait()

    async def wait_async(self) -> None:
        self._arrivals.release()
        await self._go_async.wait()

    async def all_arrived(self) -> None:
        for _ in range(self._parties):
            await self._arrivals.acquire()

    def go(self) -> None:
        self._go.set()
        self._go_async.set()


def effects_of(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return sorted(row[0] for row in connection.execute("SELECT run_id FROM effects"))


@asynccontextmanager
async def working(app: App, url: str) -> AsyncIterator[None]:
    with psycopg.connect(url, autocommit=True) as outside:
        outside.execute("CREATE TABLE effects (run_id text)")
    storage: Any = app.open_storage()
    assert isinstance(storage, PostgresStorage)
    await storage.migrate()
    await storage.close()
    async with app.run_all():
        yield


async def ended(handles: list[Any]) -> list[Run]:
    for handle in handles:
        await handle.result(MAX_WAIT_S)
    return [await handle.get() for handle in handles]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_connections_that_died_while_idle_cost_no_attempt(
    own_server: PrivatePostgres, url: str, kind: str
) -> None:
    app = App(url, defaults=PATIENT)
    pause = Pause(AT_ONCE)

    @app.task(name="pay_async")
    async def pay_async(ctx: Context, first: bool) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (ctx.run_id,))
            if first:
                await pause.wait_async()

    @app.task(name="pay_sync")
    def pay_sync(ctx: Context, first: bool) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (ctx.run_id,))
            if first:
                pause.wait()

    pay: Any = pay_async if kind == "async" else pay_sync
    async with working(app, url):
        before = [await pay.trigger(first=True) for _ in range(AT_ONCE)]
        await pause.all_arrived()
        pause.go()
        await ended(before)
        await asyncio.to_thread(own_server.restart)

        runs = await ended([await pay.trigger(first=False) for _ in range(2 * AT_ONCE)])

    assert [run.counters.attempts for run in runs] == [1] * len(runs)
    assert effects_of(url) == sorted([run.id for run in runs] + [run.id for run in before])


@pytest.mark.parametrize("reaction", ["lets the error pass", "raises its own", "hides it"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_server_that_goes_away_before_the_commit_costs_no_attempt(
    own_server: PrivatePostgres, url: str, kind: str, reaction: str
) -> None:
    app = App(url, defaults=PATIENT)
    pause = Pause(1)

    @app.task(name="pay_async", retry=Retry(max_attempts=1))
    async def pay_async(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (ctx.run_id,))
            if ctx.attempt == 1:
                await pause.wait_async()
                try:
                    await connection.execute("SELECT 1")
                except psycopg.Error as error:
                    react(reaction, error)
        return ctx.attempt

    @app.task(name="pay_sync", retry=Retry(max_attempts=1))
    def pay_sync(ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (ctx.run_id,))
            if ctx.attempt == 1:
                pause.wait()
                try:
                    connection.execute("SELECT 1")
                except psycopg.Error as error:
                    react(reaction, error)
        return ctx.attempt

    pay: Any = pay_async if kind == "async" else pay_sync
    async with working(app, url):
        handle = await pay.trigger()
        await pause.all_arrived()
        await asyncio.to_thread(own_server.restart)
        pause.go()

        [run] = await ended([handle])

    assert (run.counters.failures, run.interruptions) == (0, 1)
    assert effects_of(url) == [run.id]


def react(reaction: str, error: psycopg.Error) -> None:
    if reaction == "lets the error pass":
        raise error
    if reaction == "raises its own":
        raise ValueError("it did not work") from error


async def test_what_a_handler_decides_about_its_lost_transaction_stands(url: str) -> None:
    app = App(url, defaults=PATIENT)

    @app.task
    async def give_up(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.close()
        raise Fail("I have seen enough", retryable=False)

    async with working(app, url):
        run = await give_up.trigger()
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)
        record = await run.get()

    assert (str(record.status), record.interruptions) == ("failed", 0)
