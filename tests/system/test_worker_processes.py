"""Workers that are paused, told to stop, or left without their database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleet import Fleet, WorkerProcess
from ledger import recoveries_in
from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Run
from perdure.testing.postgres import PrivatePostgres
from torture import load_app
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

TTL = 1.5
LONG_TTL = 3.0
"""Its third is the grace in which owners must come back: also on a busy machine."""


@pytest.fixture
def fleet(storage_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, storage_url, lease_ttl=TTL) as workers:
        yield workers


@pytest_asyncio.fixture
async def tasks(storage_url: str) -> AsyncIterator[Any]:
    """The workers' module, as their client sees it."""
    module = load_app(storage_url, lease_ttl=TTL)
    async with module.app:
        yield module


async def ready(worker: WorkerProcess) -> WorkerProcess:
    return await asyncio.to_thread(worker.wait_until_ready)


async def ended(worker: WorkerProcess) -> int:
    return await asyncio.to_thread(worker.process.wait, MAX_WAIT_S)


async def held_by(tasks: Any, worker: WorkerProcess, run_ids: Sequence[str]) -> list[Run]:
    """These runs, once the worker executes all of them. Whoever was paused in the middle of a
    transaction keeps what it locked until the database ends that, after 15 seconds."""
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            runs = [await tasks.app.runs.get(run_id) for run_id in run_ids]
            mine = [
                r for r in runs if r.lease is not None and r.lease.worker_id == worker.worker_id
            ]
            if len(mine) == len(run_ids) and all(r.status is Status.RUNNING for r in runs):
                return runs
            await asyncio.sleep(0.02)


async def history(tasks: Any, run_id: str) -> Sequence[RecordedEvent]:
    events: Sequence[RecordedEvent] = await tasks.app.runs.events(run_id)
    return events


def first(events: Sequence[RecordedEvent], type: EventType) -> RecordedEvent:
    return next(recorded for recorded in events if recorded.type is type)


async def test_a_paused_workers_late_outcome_is_refused(fleet: Fleet, tasks: Any) -> None:
    sleeper = await ready(fleet.start("--no-maintenance"))
    run = await tasks.double_slowly.trigger(21, 2.5)
    await held_by(tasks, sleeper, [run.id])

    sleeper.pause()
    other = await ready(fleet.start())
    await held_by(tasks, other, [run.id])
    await asyncio.sleep(1)  # the paused one's handler is due, the other's is not
    sleeper.go_on()

    assert await run.result(timeout=MAX_WAIT_S) == 42
    record, events = await run.get(), await history(tasks, run.id)
    assert first(events, EventType.SUCCEEDED).actor.id == other.worker_id
    assert record.counters.attempts == 2
    async with asyncio.timeout(MAX_WAIT_S):
        while not sleeper.said("late outcome of .* refused"):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.05)
    assert fleet.audit()["mismatches"] == 0


async def test_sigterm_hands_over_and_counts_nothing(fleet: Fleet, tasks: Any) -> None:
    await hand_over(fleet, tasks)


@pytest.mark.timed
async def test_sigterm_hands_over_within_two_seconds(fleet: Fleet, tasks: Any) -> None:
    delays = await hand_over(fleet, tasks)

    assert max(delays) < 2


async def hand_over(fleet: Fleet, tasks: Any) -> list[float]:
    """Return the seconds from the signal until each run was released.

    Handlers that stop when told, a thread that does not, and one that blocks the loop.
    """
    delays = []
    leaving = await ready(fleet.start("--drain", "0.5", "--no-maintenance"))
    staying = fleet.start("--no-maintenance")
    staying.pause()
    willing = [await tasks.double_slowly.trigger(number, 2.5) for number in range(8)]
    deaf = [await tasks.ignore_everything.trigger(number, 2.5) for number in range(4)]
    await held_by(tasks, leaving, [run.id for run in willing + deaf])
    rude = [await tasks.block_the_loop.trigger(0, 3.0)]
    await held_by(tasks, leaving, [run.id for run in rude])
    staying.go_on()

    told_at = datetime.now(UTC)
    leaving.terminate()
    code = await ended(leaving)

    assert code == 0, leaving.log.read_text()
    for runs in (willing, deaf, rude):
        for number, run in enumerate(runs):
            assert await run.result(timeout=MAX_WAIT_S) == 2 * number
            released = first(await history(tasks, run.id), EventType.RELEASED)
            delays.append((released.occurred_at - told_at).total_seconds())
            counters = (await run.get()).counters
            assert (counters.failures, counters.attempts) == (0, 2)
    assert fleet.audit()["mismatches"] == 0
    return delays


async def test_a_database_away_for_two_leases_costs_nobody_a_lease(tmp_path: Path) -> None:
    await go_without_a_database(tmp_path)


@pytest.mark.timed
async def test_work_goes_on_within_five_seconds_of_an_outage(tmp_path: Path) -> None:
    assert await go_without_a_database(tmp_path) < 5


async def go_without_a_database(tmp_path: Path) -> float:
    """Return the seconds from the server's return until a new run has ended."""
    with PrivatePostgres.start() as server:
        url = server.create_database("outage")
        tasks = load_app(url, lease_ttl=LONG_TTL)
        storage = tasks.app.open_storage()
        await storage.migrate()
        await storage.close()
        with Fleet(tmp_path, url, lease_ttl=LONG_TTL) as fleet:
            async with tasks.app:
                return await survive_an_outage(server, fleet, tasks)


async def survive_an_outage(server: PrivatePostgres, fleet: Fleet, tasks: Any) -> float:
    workers = [fleet.start(), fleet.start()]
    for worker in workers:
        await ready(worker)
    during = [await tasks.double_slowly.trigger(n, 2 * LONG_TTL + 4) for n in range(6)]
    across = [await tasks.double_slowly.trigger(n, 2 * LONG_TTL + 1) for n in range(6)]
    ending = [await tasks.double_slowly.trigger(n, LONG_TTL) for n in range(6)]
    await asyncio.sleep(1)

    server.immediate_stop()
    await asyncio.sleep(2 * LONG_TTL)
    await asyncio.to_thread(server.restart)
    back_at = time.monotonic()

    later = await tasks.double.trigger(100)
    assert await later.result(timeout=MAX_WAIT_S) == 200
    resumed_after = time.monotonic() - back_at
    for runs in (during, across, ending):
        for number, run in enumerate(runs):
            assert await run.result(timeout=MAX_WAIT_S) == 2 * number
            assert recoveries_in(run.id, await history(tasks, run.id)) == []
            assert (await run.get()).counters.attempts == 1
    assert [worker.process.poll() for worker in workers] == [None, None]
    assert not any(worker.said("lease of .* lost") for worker in workers)
    assert fleet.audit()["mismatches"] == 0
    return resumed_after
