"""A worker's leases: by token, because a run may come back before its former lease is settled."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import pytest_asyncio

from builders import a_policy
from perdure import App, Context
from perdure.core.retry import Backoff
from perdure.core.run import Run
from perdure.engine.leases import Leases
from perdure.errors import LeaseLost
from storage_kit import claim_one, failure, new_run, stored, token_of

AT_ONCE = a_policy(max_attempts=5, backoff=Backoff(initial=timedelta(0)))


class Told:
    """What the leases said to their worker."""

    def __init__(self, app: App) -> None:
        self.lost: list[str] = []
        self.leases = Leases(app, app.storage, "worker_1", self.lost.append, lambda token: None)


@pytest_asyncio.fixture
async def twice(opened: App) -> tuple[Run, Run]:
    """One run, held twice in turn."""
    await stored(opened.storage, new_run(policy=AT_ONCE))
    first = await claim_one(opened.storage)
    await stored(opened.storage, failure(first))
    second = await claim_one(opened.storage)
    assert second.id == first.id
    return first, second


async def test_settling_a_former_lease_does_not_drop_the_new_one(
    opened: App, twice: tuple[Run, Run]
) -> None:
    first, second = twice
    leases = Told(opened).leases
    leases.hold([first])
    leases.hold([second])

    leases.drop(token_of(first))

    leases.check(second.id, token_of(second))
    with pytest.raises(LeaseLost):
        leases.check(first.id, token_of(first))


async def test_a_former_attempt_learns_that_its_lease_is_gone(
    opened: App, twice: tuple[Run, Run]
) -> None:
    first, second = twice
    told = Told(opened)
    told.leases.hold([first])
    told.leases.hold([second])

    await told.leases.renew()

    assert told.lost == [token_of(first)]
    assert list(told.leases.held) == [token_of(second)]


async def test_an_answer_about_a_former_lease_says_nothing_of_the_new_one(
    opened: App, twice: tuple[Run, Run]
) -> None:
    """The question was on its way when the run came back."""
    first, second = twice
    told = Told(opened)
    told.leases.hold([first])
    question = asyncio.create_task(told.leases.renew())
    await asyncio.sleep(0)
    told.leases.hold([second])

    await question

    assert list(told.leases.held) == [token_of(second)]


async def test_heartbeats_are_recorded_where_the_policy_asks_for_it(app: App) -> None:
    @app.task(record_heartbeats=True)
    async def long(ctx: Context) -> str:
        await asyncio.sleep(2 * app.defaults.renewal_interval.total_seconds())
        return "done"

    async with app.run_all():
        run = await long.trigger()
        assert await run.result(10) == "done"
        types = [event.type for event in await app.runs.events(run.id)]

    assert types[:3] == ["run.created", "run.lease_claimed", "run.started"]
    assert "run.lease_heartbeat" in types
    assert types[-1] == "run.succeeded"
