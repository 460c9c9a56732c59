"""A run that crashes its process, beside runs that do not, with real worker processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleet import Fleet, WorkerProcess
from perdure.core.decide.recovery import DIED_ALONE
from perdure.core.explain.why import Code
from perdure.core.run.lifecycle import Status
from perdure.errors import RunUnsuccessful
from server_process import ServerProcess
from storage_kit import claim, wait_until
from torture import load_app
from waiting import MAX_WAIT_S
from web_kit import make_key

pytestmark = pytest.mark.system

TTL = 1.5
INNOCENTS = 9


@pytest.fixture
def fleet(storage_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, storage_url, lease_ttl=TTL) as workers:
        yield workers


@pytest_asyncio.fixture
async def tasks(storage_url: str) -> AsyncIterator[Any]:
    module = load_app(storage_url, lease_ttl=TTL)
    async with module.app:
        yield module


async def test_a_crashing_run_becomes_a_dead_letter_and_its_neighbours_keep_their_budget(
    fleet: Fleet, tasks: Any
) -> None:
    innocents = [await tasks.double_slowly.trigger(number, 1.0) for number in range(INNOCENTS)]
    poison = await tasks.crash_process.trigger()
    fleet.start("--processes", "2")

    with pytest.raises(RunUnsuccessful):
        await poison.result(timeout=3 * MAX_WAIT_S)
    for number, run in enumerate(innocents):
        assert await run.result(timeout=3 * MAX_WAIT_S) == 2 * number
        assert (await run.get()).counters.failures == 0

    dead, why = await poison.get(), await tasks.app.runs.why(poison.id)
    assert (dead.status, dead.reason) == (Status.DEAD_LETTERED, "poison")
    assert (dead.failure, dead.counters.failures) == (DIED_ALONE, 3)
    assert Code.DEAD_LETTERED in why.codes
    assert "(poison)" in why.sentence
    assert fleet.audit()["mismatches"] == 0


async def a_suspect(tasks: Any, seconds: float) -> Any:
    """A run that takes so long, and that two workers executed when they died."""
    run = await tasks.double_slowly.trigger(21, seconds)
    for _ in range(2):
        options: dict[str, Any] = {"tasks": ("double_slowly",), "run_ids": (run.id,)}
        ttl = timedelta(milliseconds=20)
        [held] = (await claim(tasks.app.storage, 1, lease_ttl=ttl, **options)).runs
        assert held.lease is not None
        await wait_until(tasks.app.storage, held.lease.expires_at)
        await tasks.app.tick(grace=0)
    assert (await run.get()).is_suspect
    return run


async def process_of(worker: WorkerProcess, suspect: Any) -> int:
    """The process that a worker has started for the suspect, once it executes it."""
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            said = [line["pid"] for line in worker.lines() if "executes alone" in line["message"]]
            run = await suspect.get()
            if said and run.status is Status.RUNNING:
                assert run.lease.worker_id != worker.worker_id
                return int(said[-1])
            await asyncio.sleep(0.02)


async def gone(pid: int) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_sigterm_leaves_no_process_of_a_suspect_behind(
    fleet: Fleet, tasks: Any, processes: str
) -> None:
    suspect = await a_suspect(tasks, 3600)
    worker = fleet.start("--processes", processes, "--drain", "0")
    pid = await process_of(worker, suspect)

    worker.terminate()

    assert await asyncio.to_thread(worker.process.wait, MAX_WAIT_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    handed_over = await suspect.get()
    assert (handed_over.lease, handed_over.is_suspect) == (None, True)
    assert handed_over.counters.failures == 0


async def test_the_process_of_a_suspect_ends_with_a_killed_worker(fleet: Fleet, tasks: Any) -> None:
    suspect = await a_suspect(tasks, 3600)
    worker = fleet.start("--drain", "0")
    pid = await process_of(worker, suspect)

    worker.kill()

    await gone(pid)
    assert (await suspect.get()).lease is None


async def test_remote_workers_execute_suspects_in_processes_of_their_own(
    tasks: Any, storage_url: str, tmp_path: Path
) -> None:
    suspect = await a_suspect(tasks, 0.5)
    key = await make_key(tasks.app, "work")
    with (
        ServerProcess(storage_url, tmp_path / "server.log", lease_ttl=TTL) as server,
        Fleet(tmp_path, server.address, lease_ttl=TTL, api_key=key) as remote,
    ):
        worker = remote.start("--concurrency", "5")
        await process_of(worker, suspect)

        assert await suspect.result(timeout=MAX_WAIT_S) == 42
