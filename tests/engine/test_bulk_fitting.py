"""Which runs an order about many is about, and how they are counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builders import T0, a_run
from perdure import App
from perdure.app.bulk import carrier, place_order
from perdure.core.decide import (
    decide_cancel,
    decide_pause,
    decide_rerun,
    decide_resume,
    decide_retry,
)
from perdure.core.decide.event import Events
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.engine.operators import bulk
from perdure.engine.operators.bulk import count_fitting
from perdure.engine.operators.bulk_order import ABOUT, Action, Order
from perdure.errors import NotAllowed
from waiting import MAX_WAIT_S

ADA = Actor(ActorType.OPERATOR, "ada")
NEW = "run_01890000000070008000000000000000"

DECIDE: dict[Action, Callable[[Run], Events]] = {
    Action.CANCEL: lambda run: decide_cancel(run, ADA, T0),
    Action.PAUSE: lambda run: decide_pause(run, ADA, T0),
    Action.RESUME: lambda run: decide_resume(run, ADA, T0),
    Action.RETRY: lambda run: decide_retry(run, NEW, ADA, T0),
    Action.RERUN: lambda run: decide_rerun(run, NEW, ADA, T0),
}


def changes_something(action: Action, status: Status) -> bool:
    try:
        return bool(DECIDE[action](a_run(status)))
    except NotAllowed:
        return False


@pytest.mark.parametrize("action", sorted(ABOUT))
def test_an_order_is_about_the_runs_that_it_would_change(action: Action) -> None:
    assert ABOUT[action] == {status for status in Status if changes_something(action, status)}


async def test_old_orders_do_not_hide_that_there_are_too_many(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def nothing() -> None: ...

    monkeypatch.setattr(bulk, "MOST", 3)
    async with app, carrier(app, ADA) as carrying:
        for _ in range(5):
            await nothing.trigger()
        order = Order(action=Action.CANCEL, words={}, before=app.time(), by=ADA)
        await (await place_order(carrying, order)).result(MAX_WAIT_S)

        assert await count_fitting(app.runtime, Action.RERUN, {}) == 3
