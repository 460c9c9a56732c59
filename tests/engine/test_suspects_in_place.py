"""A worker that starts no processes executes a suspect while it executes nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from fix_app import QUICK
from perdure import App, Retry
from perdure.core.decide.recovery import DIED_ALONE
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from remote_kit import Hall, served
from storage_kit import claim, wait_until
from waiting import MAX_WAIT_S
from web_kit import make_key

AN_INSTANT = timedelta(milliseconds=20)


@pytest_asyncio.fixture
async def beside(storage_url: str) -> AsyncIterator[App]:
    """An app beside the database, which recovers what dead workers held."""
    async with App(storage_url, defaults=QUICK) as app:
        yield app


@pytest_asyncio.fixture(params=["beside the database", "remote"])
async def app(
    request: pytest.FixtureRequest, beside: App, storage_url: str, hall: Hall
) -> AsyncIterator[App]:
    """The app of the worker. Not opened yet: tasks are defined first."""
    if request.param != "remote":
        yield App(storage_url, defaults=QUICK)
        return
    with served(hall, storage_url) as address:
        yield App(
            address, api_key=await make_key(beside, "work", "trigger", "read"), defaults=QUICK
        )


async def kill_worker_of(app: App, run: Any) -> Run:
    """Have another worker claim the run, and die."""
    found = await app.runs.get(run.id)
    options: dict[str, Any] = {"tasks": (found.task,), "run_ids": (run.id,)}
    [held] = (await claim(app.storage, 1, lease_ttl=AN_INSTANT, **options)).runs
    assert held.lease is not None
    await wait_until(app.storage, held.lease.expires_at)
    await app.tick(grace=0)
    return await app.runs.get(run.id)


async def test_a_suspect_executes_beside_no_other_run(app: App, beside: App) -> None:
    executing: set[str] = set()
    seen: list[set[str]] = []

    @app.task(queue="ordinary")
    async def innocent(number: int) -> None:
        executing.add(f"innocent {number}")
        seen.append(set(executing))
        await asyncio.sleep(0.05)
        executing.remove(f"innocent {number}")

    @app.task
    async def suspect() -> str:
        executing.add("suspect")
        seen.append(set(executing))
        await asyncio.sleep(0.3)
        executing.remove("suspect")
        return "done"

    async with app:
        run = await suspect.trigger()
        for deaths in (1, 2):
            assert (await kill_worker_of(beside, run)).deaths == deaths
        others = [await innocent.trigger(number) for number in range(20)]
        async with app.worker(concurrency=4):
            assert await run.result(MAX_WAIT_S) == "done"
            for other in others:
                await other.result(MAX_WAIT_S)

    assert {"suspect"} in seen
    assert [found for found in seen if "suspect" in found and len(found) > 1] == []
    assert any(len(found) > 1 for found in seen)


async def test_an_innocent_suspect_keeps_its_budget(app: App, beside: App) -> None:
    @app.task(retry=Retry(max_attempts=2))
    async def suspect() -> str:
        return "done"

    async with app:
        run = await suspect.trigger()
        for _ in range(2):
            await kill_worker_of(beside, run)
        async with app.worker(concurrency=4):
            await run.result(MAX_WAIT_S)

    assert (await beside.runs.get(run.id)).counters.failures == 0


async def test_what_kills_a_worker_while_it_executes_alone_is_counted(beside: App) -> None:
    @beside.task(retry=Retry(max_attempts=2, initial=0, jitter=0))
    async def poison() -> None: ...

    @beside.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def once() -> None: ...

    run, single = await poison.trigger(), await once.trigger()
    found = [await kill_worker_of(beside, run) for _ in range(4)]

    assert [it.counters.failures for it in found] == [0, 0, 1, 2]
    assert (found[-1].status, found[-1].reason) == (Status.DEAD_LETTERED, "poison")
    assert found[-1].failure == DIED_ALONE
    assert (await kill_worker_of(beside, single)).status is Status.DEAD_LETTERED


async def test_a_single_try_that_may_be_repeated_after_a_crash_says_so(beside: App) -> None:
    @beside.task(retry=Retry(max_attempts=1), on_lease_expired="redeliver")
    async def repeatable() -> None: ...

    run = await repeatable.trigger()

    assert (await kill_worker_of(beside, run)).status is Status.QUEUED
