"""A worker's leases: by token, because a run may come back before its former lease is settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from builders import a_policy
from perdure import App, Context, Retry
from perdure.core.run.backoff import Backoff
from perdure.core.run.run import Run
from perdure.engine.worker.leases import Leases
from perdure.errors import LeaseLost, RunCancelled
from perdure.storage.contract.runs import Renewal, Renewed
from storage_kit import claim_one, failure, new_run, stored, token_of
from virtual_time import play
from waiting import MAX_WAIT_S

AT_ONCE = a_policy(max_attempts=5, backoff=Backoff(initial=timedelta(0)))


class Told:
    """What the leases said to their worker."""

    def __init__(self, app: App) -> None:
        self.lost: list[str] = []
        self.leases = Leases(
            app.components, app.backend, self.lost.append, lambda token: None, lambda token: False
        )


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
        assert await run.result(MAX_WAIT_S) == "done"
        types = [event.type for event in await app.runs.events(run.id)]

    assert types[:3] == ["run.created", "run.lease_claimed", "run.started"]
    assert "run.lease_heartbeat" in types
    assert types[-1] == "run.succeeded"


def test_a_short_lease_claimed_while_the_others_have_long_to_go_is_renewed_in_time() -> None:
    calls: list[int] = []

    async def story(app: App) -> None:
        @app.task(lease_ttl=2)
        async def slow() -> None:
            calls.append(1)
            await asyncio.sleep(7)

        async with app, app.maintenance(), app.worker(concurrency=1, same_loop=True):
            await asyncio.sleep(10.5)  # the next renewal is almost ten seconds away
            await (await slow.trigger()).result(MAX_WAIT_S)

    play(story, lease_ttl=timedelta(seconds=30))

    assert calls == [1]


def test_leases_are_renewed_together_and_no_more_often_than_the_shortest_needs() -> None:
    asked: list[float] = []

    async def story(app: App) -> None:
        @app.task
        async def slow() -> None:
            await asyncio.sleep(29)

        async with app:
            storage: Any = app.storage
            renew = storage.renew

            async def count(renewals: Sequence[Renewal]) -> Any:
                asked.append(app.clock.elapsed())
                return await renew(renewals)

            storage.renew = count
            async with app.worker(concurrency=9, same_loop=True):
                runs = []
                for _ in range(9):
                    runs.append(await slow.trigger())
                    await asyncio.sleep(0.9)
                for run in runs:
                    await run.result(MAX_WAIT_S)

    play(story, lease_ttl=timedelta(seconds=30))

    assert {after - before for before, after in pairwise(asked)} == {10.0}


class Unspeakable(logging.Handler):
    """Somebody's logging, which cannot take our lines."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise KeyError("Attempt to overwrite 'run_id' in LogRecord")


@pytest.fixture
def broken_logging() -> Iterator[None]:
    ours, handler = logging.getLogger("perdure"), Unspeakable()
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield
    ours.removeHandler(handler)
    ours.setLevel(level)


@pytest.mark.usefixtures("broken_logging")
def test_logging_that_raises_costs_nobody_a_lease_and_no_cancellation() -> None:
    async def story(app: App) -> None:
        @app.task
        async def for_ever() -> None:
            await asyncio.Event().wait()

        @app.task(retry=Retry(max_attempts=1))
        async def slow() -> str:
            await asyncio.sleep(20)
            return "done"

        async with app, app.maintenance(), app.worker(concurrency=3, same_loop=True):
            other = await slow.trigger()
            runs = [await for_ever.trigger(), await for_ever.trigger()]
            await asyncio.sleep(1)
            began = app.clock.elapsed()
            await asyncio.gather(*(app.runs.cancel(run.id) for run in runs))
            for run in runs:
                with pytest.raises(RunCancelled):
                    await run.result(MAX_WAIT_S)
            assert app.clock.elapsed() - began < 0.1
            assert await other.result(MAX_WAIT_S) == "done"

    play(story, lease_ttl=timedelta(seconds=3))


@pytest.mark.usefixtures("broken_logging")
async def test_a_lost_lease_that_cannot_be_spoken_of_is_lost_all_the_same(
    opened: App, twice: tuple[Run, Run]
) -> None:
    first, _ = twice
    told = Told(opened)
    told.leases.hold([first])

    await told.leases.renew()

    assert told.lost == [token_of(first)]


async def test_one_answer_that_nobody_had_thought_of_does_not_end_the_renewals(
    opened: App, twice: tuple[Run, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = twice
    renew, renewed = opened.storage.renew, asyncio.Event()
    answers = iter([RuntimeError("boom"), None])

    async def answer(renewals: Sequence[Renewal]) -> Renewed:
        if error := next(answers, None):
            raise error
        renewed.set()
        return await renew(renewals)

    monkeypatch.setattr(opened.storage, "renew", answer)
    leases = Told(opened).leases
    leases.hold([run])
    leases.start()
    async with asyncio.timeout(MAX_WAIT_S):
        await renewed.wait()
    await leases.stop()


async def test_a_stop_that_waits_for_no_run_does_not_say_so(
    opened: App, twice: tuple[Run, Run], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.worker")
    leases = Told(opened).leases

    leases.log_drain()
    leases.hold([twice[1]])
    leases.log_drain()

    assert [it.getMessage() for it in caplog.records] == ["stopping; waiting for 1 runs to end"]
