"""A handler that awaits the result of a run which needs its place: `why` and `doctor` name the
cycle. On every adapter."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

import process_tasks
from fix_app import QUICK
from perdure import App
from perdure.core.explain.health import Code as Finding
from perdure.core.explain.why import Code, Why
from waiting import MAX_WAIT_S

DEFAULTS = replace(QUICK, lease_ttl=timedelta(minutes=1), concurrency=1)
"""The next heartbeat is far away: waits are reported without it."""


async def until_reported(app: App, waiting: int = 1) -> None:
    """Wait until workers have said that handlers await results."""
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            if sum(len(it.awaiting) for it in await app.workers.list()) >= waiting:
                return
            await asyncio.sleep(0.05)


async def why_cycle(app: App, run_id: str) -> Why:
    found = await app.runs.why(run_id)
    assert Code.WAIT_CYCLE in found.codes, found.sentence
    return found


async def find_cycles(app: App) -> list[str]:
    found = (await app.doctor()).findings
    return [it.sentence for it in found if it.code is Finding.WAIT_CYCLES]


async def test_a_worker_that_a_waiting_handler_starves_is_named(storage_url: str) -> None:
    app = App(storage_url, defaults=DEFAULTS)

    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent(other: str) -> int:
        found: int = await app.runs.handle(other).result()
        return found

    async with app, app.worker():
        later = await child.options(delay=timedelta(hours=1)).trigger()
        run = await parent.trigger(later.id)
        await until_reported(app)
        await app.runs.reschedule(later.id, run_at=await app.storage.now())
        others = [await child.trigger() for _ in range(5)]
        answers = [await why_cycle(app, it) for it in (later.id, run.id, others[4].id)]
        cycles = await find_cycles(app)
        await app.runs.cancel(run.id)
        assert await later.result(MAX_WAIT_S) == 1
        after = await find_cycles(app)

    words = (
        f"Runs wait for each other: {run.id} (parent) awaits the result of {later.id}, and "
        f"{later.id} (child) needs a place that {run.id} holds."
    )
    assert [answer.reasons[0].sentence for answer in answers] == [words] * 3
    assert [it.run_id for it in answers[0].reasons[0].holders] == [run.id, later.id]
    assert (cycles, after) == ([words], [])


async def test_several_handlers_that_starve_a_worker_together_are_named(storage_url: str) -> None:
    app = App(storage_url, defaults=replace(DEFAULTS, concurrency=3))

    @app.task
    async def child() -> int:
        return 1

    met = asyncio.Barrier(3)

    @app.task
    async def parent() -> int:
        await met.wait()
        run = await child.trigger()
        return await run.result()

    async with app, app.worker():
        runs = [await parent.trigger() for _ in range(3)]
        await until_reported(app, 3)
        answers = [await why_cycle(app, run.id) for run in runs]
        assert await find_cycles(app)
        await app.runs.cancel(runs[0].id)
        assert [await run.result(MAX_WAIT_S) for run in runs[1:]] == [1, 1]

    named = [it.reasons[0].holders[0].run_id for it in answers]
    assert set(named) <= {run.id for run in runs}


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_handlers_off_the_loop_report_what_they_await(
    storage_url: str, executor: str
) -> None:
    app = App(storage_url, defaults=DEFAULTS)
    wait = app.task(executor=executor)(process_tasks.wait_for_result)

    @app.task
    async def child() -> int:
        return 1

    async with app, app.worker():
        later = await child.options(delay=timedelta(hours=1)).trigger()
        run = await wait.trigger(storage_url, later.id)
        await until_reported(app)
        found = await why_cycle(app, run.id)
        await app.runs.cancel(later.id)
        await run.result(MAX_WAIT_S)

    assert f"{run.id} (wait_for_result) awaits the result of {later.id}" in found.sentence


async def test_a_limit_that_a_waiting_handler_holds_is_named(storage_url: str) -> None:
    app = App(storage_url, defaults=replace(DEFAULTS, concurrency=10))

    @app.task(concurrency=1)
    async def nested(depth: int) -> int:
        if depth == 0:
            return 0
        run = await nested.trigger(depth - 1)
        return await run.result()

    async with app, app.worker():
        run = await nested.trigger(1)
        await until_reported(app)
        found = await why_cycle(app, run.id)
        assert await find_cycles(app)
        await app.runs.cancel(run.id)

    assert "(nested) needs a place that" in found.sentence


async def test_a_handler_that_awaits_a_run_under_way_is_no_cycle(storage_url: str) -> None:
    app = App(storage_url, defaults=replace(DEFAULTS, concurrency=2))
    done = asyncio.Event()

    @app.task
    async def child() -> int:
        await done.wait()
        return 1

    @app.task
    async def parent() -> int:
        run = await child.trigger()
        return await run.result()

    async with app, app.worker():
        run = await parent.trigger()
        await until_reported(app)
        queued = await child.trigger()
        answers = [await app.runs.why(it.id) for it in (run, queued)]
        cycles = await find_cycles(app)
        done.set()
        assert await run.result(MAX_WAIT_S) == 1

    assert cycles == []
    assert all(Code.WAIT_CYCLE not in answer.codes for answer in answers)


async def test_a_worker_that_executes_one_run_only_hides_no_cycle(storage_url: str) -> None:
    app = App(storage_url, defaults=DEFAULTS)
    begun, done = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> int:
        begun.set()
        await done.wait()
        return 1

    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent() -> int:
        run = await child.trigger()
        return await run.result()

    async with app:
        held = asyncio.create_task(hold.run())
        await begun.wait()
        async with app.worker():
            run = await parent.trigger()
            await until_reported(app)
            await why_cycle(app, run.id)
            await app.runs.cancel(run.id)
        done.set()
        assert await held == 1
