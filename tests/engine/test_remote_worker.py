"""A worker that has a server's address and a key, and no database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from fix_app import QUICK
from perdure import App, Context
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.tasks.catalogue import WorkerEntry
from perdure.errors import AccessRefused, InvalidInput, RunCancelled, RunFailed, StorageRefused
from remote_kit import Hall, served
from waiting import MAX_WAIT_S
from web_kit import make_key

PATIENT = Defaults(poll=timedelta(minutes=1), lease_ttl=timedelta(minutes=3), concurrency=10)
"""What happens within seconds has been hinted at."""


class World:
    """A served database, an app beside it, and apps that only know the server."""

    def __init__(self, address: str, beside: App, stack: AsyncExitStack) -> None:
        self.address = address
        self.beside = beside
        self._stack = stack

    async def app(self, *scopes: str, defaults: Defaults = QUICK) -> App:
        """Not opened yet: tasks are defined first."""
        key = await make_key(self.beside, *scopes)
        return App(self.address, api_key=key, defaults=defaults)


@pytest_asyncio.fixture
async def world(hall: Hall, sqlite_storage_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        address = stack.enter_context(served(hall, sqlite_storage_url))
        beside = await stack.enter_async_context(App(sqlite_storage_url, defaults=QUICK))
        yield World(address, beside, stack)


def with_tasks(app: App) -> App:
    @app.task
    async def double(ctx: Context, number: int) -> int:
        ctx.log.info("doubling", number=number)
        ctx.progress(0.5, "half way")
        return 2 * number

    @app.task
    def double_in_a_thread(number: int) -> int:
        return 2 * number

    @app.task
    async def wait(ctx: Context) -> None:
        await asyncio.Event().wait()

    @app.task
    async def tell_time() -> float:
        return time.monotonic()

    @app.task
    async def doubled_twice(number: int) -> int:
        first = await app.tasks["double"].trigger(number)
        return 2 * int(await first.result(MAX_WAIT_S))

    return app


async def test_it_executes_runs_and_tells_what_they_said(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger"))

    async with app, app.worker():
        runs = [await app.tasks["double"].trigger(n) for n in range(20)]
        threads = [await app.tasks["double_in_a_thread"].trigger(n) for n in range(5)]
        assert [await run.result(MAX_WAIT_S) for run in runs] == [2 * n for n in range(20)]
        assert [await run.result(MAX_WAIT_S) for run in threads] == [2 * n for n in range(5)]

    told = await world.beside.runs.logs(runs[0].id)
    assert [line.message for line in told if line.message == "doubling"] == ["doubling"]
    progress = await world.beside.runs.progress(runs[0].id)
    assert progress is not None
    assert (progress.fraction, progress.message) == (0.5, "half way")
    assert [it.id for it in await world.beside.workers.list()] != []


async def test_its_tasks_can_be_triggered_by_whoever_has_the_database(world: World) -> None:
    app, caller = with_tasks(await world.app("work")), with_tasks(App(world.beside.url))

    async with app, app.worker(), caller:
        assert await (await caller.tasks["double"].trigger(21)).result(MAX_WAIT_S) == 42


async def test_handlers_trigger_others_and_await_them(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger"))

    async with app, app.worker():
        assert await (await app.tasks["doubled_twice"].trigger(3)).result(MAX_WAIT_S) == 12


async def measure_wake_ups(world: World) -> list[float]:
    """Return the seconds until each of ten runs has started on a remote worker."""
    app, caller = (
        with_tasks(await world.app("work", defaults=PATIENT)),
        with_tasks(App(world.beside.url)),
    )
    delays = []
    async with app, app.worker(), caller:
        assert await (await caller.tasks["double"].trigger(1)).result(MAX_WAIT_S) == 2
        for _ in range(10):
            asked = time.monotonic()
            run = await caller.tasks["tell_time"].trigger()
            delays.append(float(await run.result(MAX_WAIT_S)) - asked)
    return delays


async def test_a_wake_up_reaches_it_before_the_poll(world: World) -> None:
    assert len(await measure_wake_ups(world)) == 10


@pytest.mark.timed
async def test_a_wake_up_reaches_it_long_before_the_poll(world: World) -> None:
    delays = await measure_wake_ups(world)

    assert sorted(delays)[len(delays) // 2] < 1.0, delays


async def test_a_result_is_known_long_before_the_poll(world: World) -> None:
    worker = with_tasks(App(world.beside.url, defaults=PATIENT))
    caller = with_tasks(await world.app("work", "trigger", defaults=PATIENT))

    async with worker, worker.worker(), caller:
        assert await (await caller.tasks["double"].trigger(1)).result(MAX_WAIT_S) == 2


async def test_a_cancellation_reaches_it_long_before_the_renewal(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger", defaults=PATIENT))
    caller = with_tasks(App(world.beside.url))

    async with app, app.worker(), caller:
        run = await app.tasks["wait"].trigger()
        while (await caller.runs.get(run.id)).status is not Status.RUNNING:
            await caller.clock.sleep(timedelta(milliseconds=10))
        await caller.runs.cancel(run.id)
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_transaction_is_refused_with_the_reason(world: World, is_async: bool) -> None:
    app = await world.app("work", "trigger")
    if is_async:

        @app.task(name="transact")
        async def transact(ctx: Context) -> None:
            async with ctx.transaction():
                raise AssertionError("there is none")

    else:

        @app.task(name="transact")
        def transact_in_a_thread(ctx: Context) -> None:
            with ctx.transaction():
                raise AssertionError("there is none")

    async with app, app.worker():
        run = await app.tasks["transact"].options(retry=_once()).trigger()
        with pytest.raises(RunFailed, match="over HTTP and has no connection to their database"):
            await run.result(MAX_WAIT_S)


def _once() -> Any:
    from perdure import Retry

    return Retry(max_attempts=1)


async def test_limits_in_code_are_not_a_workers_to_declare_and_that_is_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    app = await world.app("work", "trigger")

    @app.task(concurrency=3)
    async def careful() -> str:
        return "done"

    with caplog.at_level(logging.WARNING, "perdure.app"):
        async with app, app.worker():
            assert await (await careful.trigger()).result(MAX_WAIT_S) == "done"

    assert "limits that code states were not told to the server" in caplog.text
    assert await world.beside.storage.limits("default") == []


async def test_limits_in_code_are_declared_with_an_admins_key(world: World) -> None:
    app = await world.app("work", "admin")

    @app.task(concurrency=3)
    async def careful() -> None: ...

    async with app:
        [limit] = await world.beside.storage.limits("default")

    assert limit.max_leases == 3


async def test_without_the_scope_it_does_not_start(world: World) -> None:
    app = with_tasks(await world.app("read", "trigger", "operate", "admin"))

    async with app:
        with pytest.raises(AccessRefused, match="needs the scope work"):
            async with app.worker():
                raise AssertionError("it works")


async def test_maintenance_is_the_servers(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger"))

    for ask in (app.maintenance, app.scheduler, app.webhook_sender, app.pruning):
        with pytest.raises(InvalidInput, match="looks after its database by itself"):
            ask()
    with pytest.raises(InvalidInput, match="looks after its database by itself"):
        await app.tick()
    async with app.run_all():
        assert await (await app.tasks["double"].trigger(2)).result(MAX_WAIT_S) == 4


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://", "names no host"),
        ("http://host:port", "is no address"),
        ("http://pk_secret@host", "takes host, port and path only"),
        ("http://host/?key=x", "takes host, port and path only"),
        ("http://ho st", "names no host"),
    ],
)
async def test_what_is_no_address_is_refused_before_anything_is_sent(
    url: str, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem) as refused:
        async with App(url):
            raise AssertionError("it is open")
    assert "secret" not in str(refused.value)


async def test_what_is_no_key_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidInput, match="is no API key") as refused:
        async with App("http://localhost:1", api_key="secret\r\nx: y"):
            raise AssertionError("it is open")
    assert "secret" not in str(refused.value)


async def test_an_app_at_a_server_has_no_storage(world: World) -> None:
    async with await world.app("work") as app:
        with pytest.raises(StorageRefused, match="has no database of its own"):
            app.storage  # noqa: B018  # that it raises is the point


async def test_a_task_can_be_run_here_and_now(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger"))

    async with app:
        assert await app.tasks["double"].run(4) == 8


async def test_items_asked_for_together_are_claimed_in_their_order(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger"))

    async with app:
        made = await app.tasks["double"].trigger_many([{"number": n} for n in range(700)])
        ids = [run.id for run in made if not isinstance(run, Exception)]

    assert len(ids) == 700
    assert ids == sorted(ids)
    batches = {run.batch_id for run in (await world.beside.storage.get(ids[::100])).values()}
    assert len(batches) == 1


async def test_a_handler_that_triggers_is_its_runs_parent(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger"))

    async with app, app.worker():
        outer = await app.tasks["doubled_twice"].trigger(3)
        assert await outer.result(MAX_WAIT_S) == 12

    [child] = (await world.beside.runs.list(parent_id=outer.id)).runs
    assert child.root_id == outer.id


async def test_a_worker_without_a_database_is_drained_at_once(world: World) -> None:
    app = with_tasks(await world.app("work", "trigger", defaults=PATIENT))

    async with app, app.worker(concurrency=1) as worker:
        await (await app.tasks["double"].trigger(1)).result(MAX_WAIT_S)
        await _told(world, lambda it: it.id == worker.id)  # with its first heartbeat
        await world.beside.workers.drain(worker.id)
        await _told(world, lambda it: it.id == worker.id and it.stopped)  # and with its last

    assert worker.drain_wish is not None


async def _told(world: World, holds: Callable[[WorkerEntry], bool]) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while not any(map(holds, await world.beside.workers.list())):  # noqa: ASYNC110  # no hint
            await asyncio.sleep(0.01)
