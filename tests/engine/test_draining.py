"""A worker that is asked to end from elsewhere: it does, as after SIGTERM."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App
from perdure.core.run.lifecycle import Status
from perdure.engine.operators.bulk import QUEUE, define_bulk
from perdure.engine.tasks.catalogue import WorkerEntry
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.record import Registration
from perdure.errors import InvalidInput, WorkerNotFound
from waiting import MAX_WAIT_S

PATIENT = replace(QUICK, lease_ttl=timedelta(minutes=3), poll=timedelta(minutes=1))
"""What happens within seconds has been hinted at."""


@pytest.fixture
def app(storage_url: str) -> App:
    """With leases so long that nobody falls silent on a busy machine."""
    return App(storage_url, defaults=replace(QUICK, lease_ttl=timedelta(seconds=30)))


async def entry_of(app: App, worker_id: str) -> WorkerEntry:
    [found] = [it for it in await app.workers.list() if it.id == worker_id]
    return found


async def stopped(app: App, worker_id: str) -> WorkerEntry:
    async with asyncio.timeout(MAX_WAIT_S):
        while not (entry := await entry_of(app, worker_id)).stopped:  # noqa: ASYNC110  # no hint
            await asyncio.sleep(0.01)
    return entry


def hearing(worker: WorkerHost) -> asyncio.Event:
    """Set once the worker has begun to stop because it was asked to."""
    heard, loop, begin = asyncio.Event(), asyncio.get_running_loop(), worker.on_drain

    def begin_and_tell() -> None:
        begin()
        loop.call_soon_threadsafe(heard.set)

    worker.on_drain = begin_and_tell
    return heard


async def test_a_drained_worker_ends_its_runs_and_begins_no_other(app: App) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with app, app.worker(concurrency=1) as worker:
        first = await slow.trigger()
        await begun.wait()
        heard = hearing(worker)
        await registered(app, worker.id)
        told = await app.workers.drain(worker.id, "upgrade", by="ada")
        await heard.wait()
        second = await slow.trigger()
        go_on.set()
        after = await stopped(app, worker.id)

        assert await first.result(MAX_WAIT_S) == "done"
        assert (await second.get()).status is Status.QUEUED

    assert (told.stopping, told.stopped) == (True, False)
    assert after.drain is not None
    assert (after.drain.by.id, after.drain.reason) == ("ada", "upgrade")
    assert after.running == 0


async def test_a_worker_that_stops_while_workers_are_listed_is_not_shown_with_runs(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await go_on.wait()

    async with app:
        read_leases = app.storage.held

        async with AsyncExitStack() as worker:
            running = await worker.enter_async_context(app.worker(concurrency=1))
            await slow.trigger()
            await begun.wait()
            await registered(app, running.id)

            async def read_leases_and_stop(environment: str) -> dict[str, int]:
                held = await read_leases(environment)
                go_on.set()
                await worker.aclose()
                return held

            monkeypatch.setattr(app.storage, "held", read_leases_and_stop)
            [listed] = await app.workers.list()

    assert (listed.state, listed.running) == ("working", 1)


async def test_a_worker_hears_of_it_at_once(storage_url: str) -> None:
    """From another app, as from another process: a lease here takes minutes."""
    app, operator = App(storage_url, defaults=PATIENT), App(storage_url, defaults=PATIENT)

    @app.task
    async def nothing() -> None: ...

    async with app, app.worker(concurrency=1) as worker, operator:
        await (await nothing.trigger()).result(MAX_WAIT_S)  # hints are carried by now
        await registered(operator, worker.id)
        await operator.workers.drain(worker.id)
        await stopped(operator, worker.id)


async def test_to_ask_twice_is_to_ask_once(opened: App) -> None:
    line = Registration(opened.clock, opened.backend, "worker_1")
    await line.beat(concurrency=1, running=0, tasks={}, queues=None, stopping=False)

    first = await opened.workers.drain("worker_1", "first", by="ada")
    second = await opened.workers.drain("worker_1", "second", by="bob")

    assert first.drain == second.drain


async def test_a_wish_is_kept_while_the_worker_speaks(opened: App) -> None:
    line = Registration(opened.clock, opened.backend, "worker_1")
    unasked = await line.beat(concurrency=1, running=0, tasks={}, queues=None, stopping=False)

    await opened.workers.drain("worker_1", "upgrade")
    wishes = [
        await line.beat(concurrency=n, running=0, tasks={}, queues=None, stopping=True)
        for n in (3, 2)
    ]

    told = await entry_of(opened, "worker_1")
    assert unasked is None
    assert wishes == [told.drain, told.drain]
    assert told.drain is not None
    assert told.concurrency == 2


async def test_a_worker_on_the_callers_loop_is_drained_too(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app, app.worker(concurrency=1, same_loop=True) as worker:
        await registered(app, worker.id)
        await app.workers.drain(worker.id)
        await stopped(app, worker.id)


async def test_who_is_not_there_is_not_drained(storage_url: str) -> None:
    at_once = replace(QUICK, lease_ttl=timedelta(microseconds=1))
    async with App(storage_url, defaults=at_once) as app:
        line = Registration(app.clock, app.backend, "ended")
        await line.beat(
            concurrency=1, running=0, tasks={}, queues=None, stopping=True, stopped=True
        )
        line = Registration(app.clock, app.backend, "silent")
        await line.beat(concurrency=1, running=0, tasks={}, queues=None, stopping=False)

        for worker_id in ("nobody", "ended", "silent"):
            with pytest.raises(WorkerNotFound, match="no live worker is called"):
                await app.workers.drain(worker_id)


async def test_a_servers_own_worker_is_not_drained(app: App) -> None:
    define_bulk(app)

    async with app, app.worker(concurrency=1, queues=[QUEUE]) as own:
        await registered(app, own.id)
        with pytest.raises(InvalidInput, match="belongs to the server"):
            await app.workers.drain(own.id)


async def test_a_bad_wish_is_refused(opened: App) -> None:
    with pytest.raises(InvalidInput, match="worker_id"):
        await opened.workers.drain(7)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidInput, match="reason"):
        await opened.workers.drain("worker_1", 7)  # type: ignore[arg-type]  # the same
    with pytest.raises(InvalidInput, match="by"):
        await opened.workers.drain("worker_1", by="")


async def registered(app: App, worker_id: str) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while worker_id not in {it.id for it in await app.workers.list()}:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.01)
