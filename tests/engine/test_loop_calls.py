"""`async def` handlers share a task while none of them waits, and notice nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import App, Retry
from waiting import MAX_WAIT_S

MANY = 5
seen: ContextVar[str] = ContextVar("seen", default="nothing")

Handler = Callable[[int], Awaitable[Any]]


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return App(sqlite_storage_url)


async def results_of(app: App, handler: Handler) -> Sequence[Any]:
    """Of several runs that are claimed together."""
    task = app.task(retry=Retry(max_attempts=1))(handler)
    async with app:
        runs = await task.trigger_many([{"n": n} for n in range(MANY)])
        async with app.worker(concurrency=2 * MANY):
            return [await run.result(MAX_WAIT_S) for run in runs if not isinstance(run, Exception)]


async def test_those_that_never_wait_have_one_task(app: App) -> None:
    async def name_of_task(n: int) -> str:
        return str(id(asyncio.current_task()))

    assert len(set(await results_of(app, name_of_task))) == 1


async def test_those_that_wait_have_a_task_each(app: App) -> None:
    tasks: set[asyncio.Task[Any] | None] = set()

    async def wait(n: int) -> bool:
        mine = asyncio.current_task()
        tasks.add(mine)
        await asyncio.sleep(0)
        return asyncio.current_task() is mine

    assert await results_of(app, wait) == [True] * MANY
    assert len(tasks) == MANY


async def test_who_waits_holds_up_nobody(app: App) -> None:
    last = asyncio.Event()

    async def wait_for_the_last(n: int) -> int:
        if n == MANY - 1:
            last.set()
        await last.wait()
        return n

    assert await results_of(app, wait_for_the_last) == list(range(MANY))


async def test_context_variables_are_each_ones_own(app: App) -> None:
    async def leave_a_trace(n: int) -> list[str]:
        before = seen.get()
        seen.set(f"by {n}")
        if n % 2:
            await asyncio.sleep(0)
        return [before, seen.get()]

    found = await results_of(app, leave_a_trace)

    assert found == [["nothing", f"by {n}"] for n in range(MANY)]


async def test_who_cancels_the_own_task_cancels_nobody_else(app: App) -> None:
    async def cancel_and_leave(n: int) -> int:
        if n == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)
        return n

    assert await results_of(app, cancel_and_leave) == list(range(MANY))


async def test_tasks_cancelled_before_they_begin_take_no_call_along(app: App) -> None:
    async def cancel_all_others(n: int) -> int:
        if n == 0:
            asyncio.get_running_loop().call_soon(cancel_newcomers, asyncio.all_tasks())
            await asyncio.sleep(0)
        return n

    def cancel_newcomers(known: set[asyncio.Task[Any]]) -> None:
        for task in asyncio.all_tasks() - known:
            task.cancel()

    assert await results_of(app, cancel_all_others) == list(range(MANY))


async def test_timeouts_and_groups_work_from_the_first_step_on(app: App) -> None:
    async def time_out(n: int) -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "waited"

    assert await results_of(app, time_out) == ["timed out"] * MANY
