"""Workers with a server's address and a key: killed, and left without their server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleet import Fleet, WorkerProcess
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.inspection.verify import Audit, StoredRuns
from server_process import ServerProcess
from torture import load_app
from waiting import MAX_WAIT_S
from web_kit import make_key

pytestmark = pytest.mark.system

TTL = 8.0


@pytest_asyncio.fixture
async def tasks(sqlite_storage_url: str) -> AsyncIterator[Any]:
    """The workers' module, as a client beside the database sees it."""
    module = load_app(sqlite_storage_url, lease_ttl=TTL)
    async with module.app:
        yield module


@pytest.fixture
def server(tasks: Any, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tasks.app.url, tmp_path / "server.log", lease_ttl=TTL) as process:
        yield process


@pytest_asyncio.fixture
async def fleet(tasks: Any, server: ServerProcess, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Workers that know nothing but an address and a key."""
    key = await make_key(tasks.app, "work")
    with Fleet(tmp_path, server.address, lease_ttl=TTL, api_key=key) as workers:
        yield workers


async def running(tasks: Any, worker: WorkerProcess, run_ids: list[str]) -> None:
    """Until the worker executes all of these."""
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            runs = [await tasks.app.runs.get(run_id) for run_id in run_ids]
            mine = [r for r in runs if r.lease and r.lease.worker_id == worker.worker_id]
            if len(mine) == len(runs) and all(r.status is Status.RUNNING for r in mine):
                return
            await asyncio.sleep(0.02)


async def stored(tasks: Any, run_ids: list[str]) -> list[Run]:
    return [await tasks.app.runs.get(run_id) for run_id in run_ids]


async def no_mismatch(tasks: Any) -> None:
    """What the workers' histories add up to is what the server stored."""
    audit = Audit(StoredRuns(tasks.app.storage, "default"))
    assert [finding async for finding in audit.findings()] == []


async def test_a_killed_workers_runs_are_recovered_by_the_server(tasks: Any, fleet: Fleet) -> None:
    victim = await asyncio.to_thread(fleet.start("--concurrency", "5").wait_until_ready)
    runs = [await tasks.double_slowly.trigger(n, 2.0) for n in range(3)]
    await running(tasks, victim, [run.id for run in runs])

    victim.kill()
    heir = await asyncio.to_thread(fleet.start("--concurrency", "5").wait_until_ready)

    assert [await run.result(MAX_WAIT_S) for run in runs] == [0, 2, 4]
    ended = await stored(tasks, [run.id for run in runs])
    assert {run.counters.attempts for run in ended} == {2}
    assert heir.process.poll() is None
    await no_mismatch(tasks)


async def test_a_killed_server_costs_its_workers_nothing(
    tasks: Any, server: ServerProcess, fleet: Fleet
) -> None:
    worker = await asyncio.to_thread(fleet.start("--concurrency", "10").wait_until_ready)
    during = [await tasks.double_slowly.trigger(n, 0.5) for n in range(5)]
    after = [await tasks.double_slowly.trigger(n, 6.0) for n in range(5)]
    await running(tasks, worker, [run.id for run in (*during, *after)])

    server.kill()
    later = [await tasks.double.trigger(n) for n in range(20)]
    await asyncio.to_thread(server.start)

    results = [await run.result(MAX_WAIT_S) for run in (*during, *after, *later)]
    assert results == [2 * n for n in (*range(5), *range(5), *range(20))]
    ended = await stored(tasks, [run.id for run in (*during, *after, *later)])
    assert {(run.counters.failures, run.deaths) for run in ended} == {(0, 0)}
    # The server may have died before it answered a claim. The worker gave those runs back.
    given_back = {run.id for run in ended if run.counters.releases}
    assert {run.counters.attempts for run in ended if run.id not in given_back} == {1}
    assert worker.process.poll() is None
    await no_mismatch(tasks)


async def test_a_worker_that_is_told_to_stop_hands_over_through_the_server(
    tasks: Any, fleet: Fleet
) -> None:
    worker = await asyncio.to_thread(fleet.start("--drain", "0").wait_until_ready)
    run = await tasks.go_on_for_ever.trigger(1)
    await running(tasks, worker, [run.id])

    worker.terminate()

    assert await asyncio.to_thread(worker.process.wait, MAX_WAIT_S) == 0
    [released] = await stored(tasks, [run.id])
    assert (released.status, released.counters.failures) == (Status.RELEASED, 0)
    assert released.lease is None
