"""The ladder: timeouts, cancellation, and handlers that do not end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

import raw
from bell import Bell, ring, wait_at
from perdure import App, Context, Retry, RunHandle, Task
from perdure.core.run.failure import Failure, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.engine.attempt.exits import AttemptStopped
from perdure.engine.process.io_thread import IoThread
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import RunCancelled, RunFailed
from waiting import MAX_WAIT_S

TTL = timedelta(milliseconds=300)
QUICK = Defaults(
    lease_ttl=TTL,
    poll=timedelta(milliseconds=100),
    maintenance_tick=timedelta(milliseconds=50),
    cancel_grace=timedelta(milliseconds=100),
    abandon_after=timedelta(milliseconds=300),
)
ONCE = Retry(max_attempts=1)


@pytest_asyncio.fixture
async def app(sqlite_storage_url: str) -> AsyncIterator[App]:
    async with App(sqlite_storage_url, defaults=QUICK) as opened:
        yield opened


async def failure_of(run: RunHandle[Any]) -> Failure:
    with pytest.raises(RunFailed):
        await run.result(MAX_WAIT_S)
    failure = (await run.get()).failure
    assert failure is not None
    return failure


# Timeouts and cancellation


async def test_timeouts_hold_on_the_loop_and_in_threads(app: App, bell: Bell) -> None:
    @app.task(timeout=0.2, retry=ONCE)
    async def on_loop() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=0.2, retry=ONCE)
    def in_thread() -> None:
        try:
            while True:
                pass
        except AttemptStopped:
            ring(bell.path, "interrupted")
            raise

    async with app.worker(concurrency=2):
        failures = [await failure_of(await task.trigger()) for task in (on_loop, in_thread)]
        assert await bell.word() == "interrupted"

    assert {failure.kind for failure in failures} == {FailureKind.TIMEOUT}
    assert {failure.message for failure in failures} == {
        "the attempt took longer than its timeout of 0.2 s"
    }


async def test_a_timeout_holds_although_the_handlers_loop_is_blocked(app: App, bell: Bell) -> None:
    blocked, go_on = threading.Event(), threading.Event()

    @app.task(retry=ONCE)
    async def blocks() -> None:
        blocked.set()
        go_on.wait(MAX_WAIT_S)

    @app.task(timeout=0.1, retry=ONCE)
    def late() -> None:
        while True:
            pass

    def watch() -> Status:
        """From a thread, because this loop is blocked, too."""
        assert blocked.wait(MAX_WAIT_S)
        run = late.trigger_sync()
        with pytest.raises(RunFailed):
            run.result_sync(MAX_WAIT_S)
        go_on.set()
        return app.sync.call(lambda twin: twin.runs.get(run.id)).status

    async with app.worker(concurrency=2):
        watching = asyncio.create_task(asyncio.to_thread(watch))
        run = await blocks.trigger()
        assert await watching is Status.FAILED
        await run.result(MAX_WAIT_S)
    await asyncio.to_thread(app.sync.close)


async def test_a_handler_that_blocks_its_loop_past_its_timeout_does_not_succeed(app: App) -> None:
    @app.task(timeout=0.1, retry=ONCE)
    async def returns_late() -> str:
        time.sleep(0.2)  # noqa: ASYNC251  # blocking the loop is the point
        return "too late"

    @app.task(timeout=0.1, retry=ONCE)
    async def raises_late() -> None:
        time.sleep(0.2)  # noqa: ASYNC251  # likewise
        raise ValueError("too late")

    async with app.worker(concurrency=1):
        failures = [await failure_of(await it.trigger()) for it in (returns_late, raises_late)]

    assert [failure.kind for failure in failures] == [FailureKind.TIMEOUT] * 2


async def test_effects_of_a_late_handler_are_rolled_back(app: App, sqlite_storage_url: str) -> None:
    raw.execute(sqlite_storage_url, "CREATE TABLE effects (id integer)")

    @app.task(timeout=0.1, retry=ONCE)
    async def late(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (1)")
            time.sleep(0.2)  # noqa: ASYNC251  # blocking the loop is the point

    async with app.worker(concurrency=1):
        failure = await failure_of(await late.trigger())

    assert failure.kind is FailureKind.TIMEOUT
    assert raw.execute(sqlite_storage_url, "SELECT * FROM effects") == [[]]


async def test_a_cancel_reaches_the_loop_at_once_and_a_thread_by_its_flag(
    app: App, bell: Bell
) -> None:
    @app.task
    async def on_loop() -> None:
        ring(bell.path, "on loop")
        await asyncio.Event().wait()

    @app.task
    def in_thread(ctx: Context) -> str:
        ring(bell.path, "in thread")
        while not ctx.cancelled:
            pass
        return "stopped by itself"

    async with app.worker(concurrency=2):
        run = await on_loop.trigger()
        await bell.word()
        await app.runs.cancel(run.id)
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)
        stops = await in_thread.trigger()
        await bell.word()
        await app.runs.cancel(stops.id)

        assert await stops.result(MAX_WAIT_S) == "stopped by itself"  # what it returned stands


async def test_a_thread_that_looks_at_no_flag_is_interrupted(app: App, bell: Bell) -> None:
    @app.task
    def in_thread() -> None:
        ring(bell.path)
        while True:
            pass

    async with app.worker(concurrency=1):
        run = await in_thread.trigger()
        await bell.word()
        await app.runs.cancel(run.id)
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)


async def test_rungs_are_lines_in_the_runs_log(
    app: App, bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(timeout=0.1, retry=ONCE)
    def in_thread() -> None:
        while True:
            pass

    with caplog.at_level(logging.INFO, "perdure.task"):
        async with app.worker(concurrency=1):
            run = await in_thread.trigger()
            await failure_of(run)

    lines = [vars(record) for record in caplog.records if record.name == "perdure.task.in_thread"]
    assert [line["message"] for line in lines] == ["asked to stop", "pressed to stop"]
    assert {(line["run_id"], line["reason"]) for line in lines} == {(run.id, "timeout")}


# Handlers that do not end


async def test_a_stuck_thread_keeps_its_lease_until_it_is_given_up_and_its_slot_until_it_ends(
    app: App, bell: Bell, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(timeout=0.1, retry=ONCE)
    def stuck() -> None:
        wait_at(bell.path)  # one C call, which no exception can interrupt

    @app.task
    async def next_one() -> str:
        return "at last"

    other_one = next_one.options(queue="other")
    stuck_worker = app.worker(concurrency=1, queues=["default"])
    async with stuck_worker, app.worker(concurrency=1, queues=["other"]), app.maintenance():
        run = await stuck.trigger()
        caller = await bell.heard()
        failure = await failure_of(run)
        waiting = await next_one.trigger()
        for _ in range(10):  # while another worker does, ours does not
            await (await other_one.trigger()).result(MAX_WAIT_S)
        assert (await app.runs.get(waiting.id)).status is Status.QUEUED
        caller.let_go()
        assert await waiting.result(MAX_WAIT_S) == "at last"

    assert failure.kind is FailureKind.TIMEOUT
    record = await app.runs.get(run.id)
    assert (record.counters.attempts, record.counters.abandons) == (1, 0)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.finished_at - record.started_at >= QUICK.abandon_after
    stuck_line = next(vars(line) for line in caplog.records if "is stuck" in line.msg)
    assert (stuck_line["run_id"], stuck_line["executor"]) == (run.id, "thread")


async def test_a_cancelled_run_whose_thread_is_stuck_is_cancelled_in_the_end(
    app: App, bell: Bell
) -> None:
    @app.task
    def stuck() -> None:
        wait_at(bell.path)

    async with app.worker(concurrency=1):
        run = await stuck.trigger()
        await bell.heard()
        await app.runs.cancel(run.id)
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)


async def test_a_handler_that_swallows_every_cancellation_is_ended_all_the_same(
    app: App, bell: Bell
) -> None:
    @app.task(timeout=0.1, retry=ONCE)
    async def swallows() -> None:
        try:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue
        finally:
            ring(bell.path, "ended")

    @app.task
    async def next_one() -> str:
        return "at last"

    async with app.worker(concurrency=1):
        failure = await failure_of(await swallows.trigger())
        assert await bell.word() == "ended"
        assert await (await next_one.trigger()).result(MAX_WAIT_S) == "at last"

    assert failure.kind is FailureKind.TIMEOUT


@asynccontextmanager
async def maintained_elsewhere(app: App) -> AsyncIterator[None]:
    """Maintenance on a loop that nobody blocks."""
    thread = IoThread("maintenance")
    async with app:
        service = app.twin().maintenance()
        await thread.call(service.__aenter__())
        yield
        await thread.call(service.__aexit__())
    await thread.close()


@pytest.mark.parametrize("blocks", ["the loop", "its thread"])
async def test_a_handler_that_blocks_for_five_leases_keeps_its_own(
    storage_url: str, blocks: str
) -> None:
    app = App(storage_url, defaults=QUICK)

    def block(ctx: Context) -> tuple[int, int]:
        threading.Event().wait(5 * TTL.total_seconds())
        return ctx.attempt, ctx.fence

    @app.task
    async def block_loop(ctx: Context) -> tuple[int, int]:
        return block(ctx)

    task: Task[..., Any] = block_loop if blocks == "the loop" else app.task(block)
    async with maintained_elsewhere(app), app.worker(concurrency=2):
        run = await task.trigger()
        assert tuple(await run.result(MAX_WAIT_S)) == (1, 1)
        types = [str(recorded.type) for recorded in await app.runs.events(run.id)]

    assert types == ["run.created", "run.lease_claimed", "run.started", "run.succeeded"]
