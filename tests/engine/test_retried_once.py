"""A run that failed is retried once, unless an operator insists. On every adapter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import App, Fail, Retry
from perdure.engine.client.handle import RunHandle
from perdure.engine.operators.bulk import BulkOrder
from perdure.engine.operators.bulk_order import Action, Order
from perdure.engine.runtime.input import actor_of
from perdure.errors import AlreadyRetried, NotAllowed, RunFailed
from waiting import MAX_WAIT_S


@pytest.fixture
async def failing(opened: App) -> App:
    """With two tasks: one fails, the other leaves dead letters."""

    @opened.task(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise Fail("never", retryable=False)

    @opened.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def dies() -> None:
        raise ValueError("always")

    return opened


async def ended(app: App, task: str, **options: Any) -> RunHandle[Any]:
    run = await app.tasks[task].options(**options).trigger()
    async with app.worker(concurrency=5):
        with pytest.raises(RunFailed):
            await run.result(timeout=MAX_WAIT_S)
    return run


async def made(app: App) -> int:
    return len((await app.runs.list(limit=100)).runs)


@pytest.mark.parametrize("task", ["fails", "dies"])
async def test_a_second_retry_is_refused_and_names_the_first(failing: App, task: str) -> None:
    run = await ended(failing, task)
    first = await failing.runs.retry(run)

    with pytest.raises(AlreadyRetried, match=f"{first.id} is its retry or rerun already"):
        await failing.runs.retry(run)

    assert await made(failing) == 2


@pytest.mark.parametrize("task", ["fails", "dies"])
async def test_two_retries_at_the_same_time_make_one_run(failing: App, task: str) -> None:
    run = await ended(failing, task)

    retries = [failing.runs.retry(run) for _ in range(8)]
    results = await asyncio.gather(*retries, return_exceptions=True)

    refused = [it for it in results if isinstance(it, NotAllowed)]
    assert (len(refused), await made(failing)) == (7, 2)


@pytest.mark.parametrize("task", ["fails", "dies"])
async def test_an_operator_who_insists_gets_another_retry(failing: App, task: str) -> None:
    run = await ended(failing, task)
    first = await failing.runs.retry(run, again=True)
    second = await failing.runs.retry(run, again=True)

    assert (await second.get()).source.again
    assert await failing.runs.successors([run]) == {run.id: first.id}
    assert await made(failing) == 3


async def test_a_run_that_was_rerun_is_not_retried_too(failing: App) -> None:
    run = await ended(failing, "dies")
    rerun = await failing.runs.rerun(run)
    await failing.runs.rerun(run)

    with pytest.raises(AlreadyRetried, match=rerun.id):
        await failing.runs.retry(run)

    again = await failing.runs.retry(run, again=True)
    assert (await failing.dead_letters.get(run)).replay_run_id == again.id


async def test_a_bulk_retry_skips_and_counts_what_has_a_retry(failing: App) -> None:
    runs = [await ended(failing, "fails") for _ in range(3)]
    await failing.runs.retry(runs[0])
    order = Order(
        action=Action.RETRY, words={"task": "fails"}, before=failing.time(), by=actor_of("ann")
    )

    reports = [
        await BulkOrder(
            failing.runtime, failing.served_tasks, order, f"order {number}", lambda *_: None
        ).carry_out()
        for number in (1, 2)
    ]

    assert [(it.done, it.refused) for it in reports] == [
        (2, {"AlreadyRetried": 1}),
        (0, {"AlreadyRetried": 3}),
    ]


async def test_why_names_the_retry(failing: App) -> None:
    run = await ended(failing, "fails")
    retry = await failing.runs.retry(run)

    why = await failing.runs.why(run)

    assert why.sentence.endswith(f"{retry.id} is its retry or rerun.")
    assert why.reasons[0].run_id == retry.id


async def test_a_retry_is_in_neither_the_batch_nor_the_chain_of_its_original(failing: App) -> None:
    origin = await ended(failing, "fails")
    chained = failing.tasks["fails"].options(continuation_of=origin.id)
    [run] = await chained.trigger_many([{}])
    assert isinstance(run, RunHandle)
    async with failing.worker(concurrency=5):
        with pytest.raises(RunFailed):
            await run.result(timeout=MAX_WAIT_S)

    before, after = await run.get(), await (await failing.runs.retry(run)).get()

    assert None not in (before.batch_id, before.continuation_of)
    assert (after.batch_id, after.continuation_of, after.lineage_depth) == (None, None, 0)
