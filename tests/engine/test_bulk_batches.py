"""Bulk commands decide and store many runs at once, and are as exact as one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from bulk_stress import ADA, STEPS, carry_out, make_app, measure_bulk, measure_rates
from perdure import App
from perdure.core.decide import decide_cancel
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.operators import bulk
from perdure.engine.operators.bulk_actions import BulkAction
from perdure.engine.operators.bulk_order import Action, Order, Report
from perdure.engine.runtime.ids import make_run_id
from perdure.engine.runtime.write import advance_all
from perdure.errors import NotAllowed, PerdureError
from waiting import MAX_WAIT_S


async def test_every_bulk_command_does_what_it_is_about_beside_a_worker(storage_url: str) -> None:
    measured = await measure_bulk(storage_url, 30)

    assert [(it.action, it.report) for it in measured] == [
        (action, Report(30, 30, {})) for action, _, _ in STEPS
    ]


async def test_the_rate_of_every_bulk_command_is_measured_beside_triggers(storage_url: str) -> None:
    rates = await measure_rates(storage_url, 30)

    assert list(rates) == ["trigger", *(action.value for action, _, _ in STEPS)]
    assert all(rate > 0 for rate in rates.values())


async def test_runs_that_were_written_to_meanwhile_are_read_and_decided_again_together(
    storage_url: str,
) -> None:
    statements: list[str] = []
    app = App(storage_url, hints=False, on_statement=statements.append)

    @app.task
    async def nothing(number: int) -> None: ...

    async with app:
        await nothing.trigger_many([{"number": number} for number in range(40)])
        seen = (await app.runs.list(limit=40)).runs
        for run in seen[:20]:
            await app.runs.pause(run)
        statements.clear()

        results = await advance_all(
            app.storage, seen, lambda run, now: decide_cancel(run, ADA, now), app.time(), app.ids
        )

        assert {it.status for it in results.values() if isinstance(it, Run)} == {Status.CANCELLED}
        assert set(results) == {run.id for run in seen}
        assert len(statements) < 40
        counts = await app.storage.counts("default")
        assert counts == {("default", Status.CANCELLED): 40}


async def test_one_refused_run_refuses_no_other(storage_url: str) -> None:
    async with make_app(storage_url) as app:
        await app.tasks["plain"].trigger_many([{"number": number} for number in range(4)])
        runs = (await app.runs.list()).runs
        await app.runs.cancel(runs[1])
        order = Order(action=Action.PAUSE, words={}, before=app.time(), by=ADA)

        action = BulkAction(app.runtime, app.served_tasks, order, make_run_id(app.time()))
        refusals = await action.apply(runs)

        assert [type(error) for error in refusals] == [NotAllowed]
        counts = await app.storage.counts("default")
        assert counts == {("default", Status.CANCELLED): 1, ("default", Status.PAUSED): 3}


async def test_a_worker_executes_runs_between_any_two_batches(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_RUNS", 5)
    sizes: list[int] = []

    async with make_app(storage_url) as app:

        @app.task(queue="live")
        async def live() -> None: ...

        async def execute_one(batch: Sequence[Run]) -> None:
            sizes.append(len(batch))
            await (await live.trigger()).result(timeout=MAX_WAIT_S)

        after_each_batch(monkeypatch, execute_one)
        await app.tasks["plain"].trigger_many([{"number": number} for number in range(20)])
        async with app.worker(concurrency=1, queues=["live"]):
            report = await carry_out(app, (Action.PAUSE, "plain", None))

    assert report == Report(20, 20, {})
    assert sizes == [5, 5, 5, 5]


async def test_a_run_that_changes_after_it_was_listed_is_left_alone_and_counted(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH_RUNS", 1)
    async with make_app(storage_url) as app:
        await app.tasks["plain"].trigger_many([{"number": number} for number in range(4)])
        oldest = (await app.runs.list()).runs[-1]
        after_each_batch(monkeypatch, lambda runs: app.runs.pause(oldest))

        report = await carry_out(app, (Action.CANCEL, "plain", "queued"))

        assert report == Report(4, 3, {"NotAllowed": 1})
        assert (await app.runs.get(oldest)).status is Status.PAUSED


def after_each_batch(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Sequence[Run]], Awaitable[object]]
) -> None:
    """Have `act` done after each batch of an order, before the next one."""
    apply = BulkAction.apply

    async def apply_and_act(self: BulkAction, runs: Sequence[Run]) -> list[PerdureError]:
        refusals = await apply(self, runs)
        await act(runs)
        return refusals

    monkeypatch.setattr(BulkAction, "apply", apply_and_act)
