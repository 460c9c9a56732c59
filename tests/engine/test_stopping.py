"""A worker that goes away: what ends in time is recorded, the rest is handed over, uncounted."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import process_tasks
from bell import Bell, ring, wait_at
from perdure import App, Context, Fail, Retry, RunHandle, Task
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.worker.host import WorkerHost
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S

SOON = timedelta(milliseconds=100)
AT_ONCE = timedelta(0)
MINUTE = timedelta(minutes=1)
QUICK = Defaults(poll=SOON, drain_deadline=SOON, cancel_grace=MINUTE, abandon_after=10 * MINUTE)
"""Grace and giving up are long: a stop must not wait for them."""


@pytest_asyncio.fixture
async def app(sqlite_storage_url: str) -> AsyncIterator[App]:
    async with App(sqlite_storage_url, defaults=QUICK) as opened:
        yield opened


async def assert_handed_over(app: App, run: RunHandle[Any]) -> None:
    """Given back, to be claimed at once, and nothing held against it."""
    record = await app.runs.get(run.id)
    assert record.status in (Status.RELEASED, Status.QUEUED)
    assert record.lease is None
    assert record.claimable_at is not None
    assert record.claimable_at <= app.time()
    counters = record.counters
    assert (counters.attempts, counters.failures, counters.abandons) == (1, 0, 0)
    events = await app.runs.events(run.id)
    assert (events[-1].type, getattr(events[-1].event, "reason", None)) == (
        "run.released",
        "shutdown",
    )


async def stop_quickly(worker: WorkerHost, drain: timedelta = SOON) -> None:
    """Before the grace of handlers is over, whatever they do."""
    async with asyncio.timeout((drain + QUICK.cancel_grace).total_seconds()):
        await worker.stop(drain)


async def test_attempts_that_end_before_the_deadline_are_recorded(app: App, bell: Bell) -> None:
    @app.task
    def short() -> str:
        wait_at(bell.path)
        return "done"

    worker = await app.worker(concurrency=1).__aenter__()
    run = await short.trigger()
    caller = await bell.heard()
    later = await short.trigger()
    stopping = asyncio.create_task(worker.stop(timedelta(seconds=20)))
    await asyncio.wait({stopping}, timeout=0.1)
    assert not stopping.done()
    caller.let_go()
    await stopping

    assert await run.result(1) == "done"
    assert (await app.runs.get(later.id)).status is Status.QUEUED


async def test_a_handler_that_stops_when_asked_is_handed_over(app: App, bell: Bell) -> None:
    @app.task
    async def on_loop() -> None:
        ring(bell.path)
        try:
            await asyncio.Event().wait()
        finally:
            ring(bell.path, "cleaned up")

    worker = await app.worker(concurrency=1).__aenter__()
    run = await on_loop.trigger()
    await bell.word()
    await stop_quickly(worker)

    assert await bell.word() == "cleaned up"
    await assert_handed_over(app, run)


async def test_what_it_raises_because_it_was_disturbed_is_not_counted(app: App, bell: Bell) -> None:
    @app.task
    def raises(ctx: Context) -> None:
        ring(bell.path)
        while not ctx.cancelled:
            pass
        raise ConnectionError("somebody closed it")

    @app.task
    def fails(ctx: Context) -> None:
        ring(bell.path)
        while not ctx.cancelled:
            pass
        raise Fail("and that is final", retryable=False)

    worker = await app.worker(concurrency=2).__aenter__()
    disturbed, failed = await raises.trigger(), await fails.trigger()
    await bell.word()
    await bell.word()
    await stop_quickly(worker, AT_ONCE)

    await assert_handed_over(app, disturbed)
    with pytest.raises(RunFailed, match="and that is final"):
        await failed.result(1)


async def test_handlers_that_do_not_stop_are_handed_over_all_the_same(
    storage_url: str, bell: Bell
) -> None:
    app = App(storage_url, defaults=QUICK)

    @app.task
    def stuck_in_c() -> None:
        wait_at(bell.path)

    @app.task
    async def swallows() -> None:
        ring(bell.path)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    stubborn: Task[..., Any] = app.task(executor="process")(process_tasks.stubborn)
    async with app:
        worker = await app.worker(concurrency=3).__aenter__()
        runs = [await stuck_in_c.trigger(), await swallows.trigger()]
        runs.append(await stubborn.trigger(bell.path))
        callers = [await bell.heard() for _ in range(4)]  # stubborn has something beside it
        await stop_quickly(worker)

        for run in runs:
            await assert_handed_over(app, run)
        async with asyncio.timeout(MAX_WAIT_S):
            for caller in callers:
                if caller.word in ("stubborn", "beside"):
                    await caller.gone()


async def test_the_next_worker_takes_over_and_a_late_outcome_changes_nothing(
    app: App, bell: Bell
) -> None:
    ended = threading.Event()

    @app.task(retry=Retry(max_attempts=1))
    def slow(ctx: Context) -> int:
        try:
            wait_at(bell.path, str(ctx.attempt))
        finally:
            ended.set()
        return ctx.attempt

    first = await app.worker(concurrency=1).__aenter__()
    run = await slow.trigger()
    old = await bell.heard()
    await stop_quickly(first)
    async with app.worker(concurrency=1):
        new = await bell.heard()
        old.let_go()
        assert await asyncio.to_thread(ended.wait, MAX_WAIT_S)
        new.let_go()
        assert await run.result(MAX_WAIT_S) == 2


async def test_a_cancelled_run_is_cancelled_when_its_worker_goes(app: App, bell: Bell) -> None:
    @app.task
    def stuck() -> None:
        wait_at(bell.path)

    worker = await app.worker(concurrency=1).__aenter__()
    run = await stuck.trigger()
    await bell.heard()
    await app.runs.cancel(run.id)
    await stop_quickly(worker)

    assert (await app.runs.get(run.id)).status is Status.CANCELLED


async def test_whoever_is_cancelled_again_while_it_stops_does_not_leave_a_living_worker(
    app: App, bell: Bell
) -> None:
    @app.task
    def stuck() -> None:
        wait_at(bell.path)

    async def live() -> None:
        async with app.worker(concurrency=1, drain=600):
            await asyncio.Event().wait()

    before = set(threading.enumerate())
    life = asyncio.create_task(live())
    run = await stuck.trigger()
    await bell.heard()
    life.cancel()
    await asyncio.wait({life}, timeout=0.1)
    assert not life.done()  # it drains
    life.cancel()
    async with asyncio.timeout(MAX_WAIT_S):
        with pytest.raises(asyncio.CancelledError):
            await life

    await assert_handed_over(app, run)
    assert "perdure-io" not in {thread.name for thread in set(threading.enumerate()) - before}


async def test_an_error_in_the_block_is_not_kept_waiting_by_long_runs(app: App, bell: Bell) -> None:
    @app.task
    async def long() -> None:
        ring(bell.path)
        await asyncio.Event().wait()

    async def live() -> None:
        async with app.worker(concurrency=1, drain=600):
            await long.trigger()
            await bell.word()
            raise ValueError("something else is broken")

    async with asyncio.timeout(MAX_WAIT_S):
        with pytest.raises(ValueError, match="something else is broken"):
            await live()


async def test_a_stop_that_takes_long_says_what_it_waits_for(app: App, bell: Bell) -> None:
    said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("stopping; waiting for"):
                runs.append((record.getMessage(), getattr(record, "run_ids", None)))
                said.set()

    @app.task
    def long() -> None:
        wait_at(bell.path)

    runs: list[Any] = []
    listener = Listener()
    logging.getLogger("perdure.worker").addHandler(listener)
    worker = await app.worker(concurrency=1).__aenter__()
    run = await long.trigger()
    caller = await bell.heard()
    stopping = asyncio.create_task(worker.stop(timedelta(seconds=60)))
    assert await asyncio.to_thread(said.wait, MAX_WAIT_S)
    caller.let_go()
    await stopping
    logging.getLogger("perdure.worker").removeHandler(listener)

    assert runs == [("stopping; waiting for 1 runs to end", [run.id])]


def test_a_process_ends_although_its_handlers_do_not(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(_SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs.db")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=MAX_WAIT_S,
        check=True,
    )

    assert ended.stdout == "released 1 0\n"


_SCRIPT = """
import asyncio, sys, threading
from datetime import timedelta
from perdure import App

app = App("sqlite:///" + sys.argv[1])
begun = threading.Event()

@app.task
def for_ever() -> None:
    begun.set()
    threading.Event().wait()

@app.task
async def swallows() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    async with app:
        async with app.worker(concurrency=2, drain=0):
            await swallows.trigger()
            run = await for_ever.trigger()
            await asyncio.to_thread(begun.wait)
        record = await app.runs.get(run.id)
        print(record.status, record.counters.attempts, record.counters.failures)

asyncio.run(main())
"""
