"""A run that kills its workers, in the kit: it costs its neighbours nothing, and then it executes
alone."""

from __future__ import annotations

import asyncio

import pytest

from perdure import App, Retry
from perdure.testing import Kit, point

ATTEMPT = ("run.lease_claimed", "run.started")
HISTORY = [
    "run.created",
    *(*ATTEMPT, "run.delivery_requested"),
    *(*ATTEMPT, "run.delivery_requested"),
    *(*ATTEMPT, "run.succeeded"),
]


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    return perdure_kit


@pytest.fixture
def app(perdure_app: App) -> App:
    return perdure_app


def test_a_run_that_kills_every_worker_executes_alone_and_becomes_a_dead_letter(
    kit: Kit, app: App
) -> None:
    executing: set[str] = set()
    beside: list[set[str]] = []

    @app.task
    async def innocent(name: str) -> str:
        executing.add(name)
        await asyncio.sleep(1)
        executing.discard(name)
        return name

    @app.task(retry=Retry(max_attempts=2, initial=1, jitter=0))
    async def poison() -> None:
        await asyncio.sleep(0.1)
        beside.append(set(executing))
        executing.clear()
        kit.crash_worker()
        await asyncio.sleep(1)

    neighbours = [innocent.trigger_sync(name) for name in ("a", "b")]
    run = poison.trigger_sync()
    kit.run_until_done()

    dead = kit.get(run)
    assert beside == [{"a", "b"}, {"a", "b"}, set(), set()]
    assert (dead.status, dead.reason, dead.counters.failures) == ("dead_lettered", "poison", 2)
    for neighbour in neighbours:
        kit.assert_succeeded(neighbour)
        assert kit.get(neighbour).counters.failures == 0


def test_a_suspect_that_is_innocent_succeeds_when_it_executes_alone(kit: Kit, app: App) -> None:
    @app.task
    async def innocent() -> str:
        point("begun")
        return "done"

    run = innocent.trigger_sync()
    kit.crash_at_point("begun")
    kit.run_until_idle()
    kit.crash_at_point("begun")
    kit.advance(30)
    second = kit.get(run)
    kit.run_until_done()

    assert (second.status, second.deaths) == ("running", 1)
    kit.assert_succeeded(run, result="done")
    assert kit.get(run).counters.failures == 0
    kit.assert_history(run, HISTORY)
