"""`perdure workers drain`: real processes end because they were asked to, from elsewhere."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from command import Answer, Shell
from perdure import App
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import ActorType
from perdure.engine.operators.audit_log import AuditLog
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system


class Plant:
    """A database, a process of workers on it, and who they are."""

    def __init__(self, shell: Shell, app: App) -> None:
        self.shell = shell
        self.app = app
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, *arguments: str, count: int = 1) -> list[str]:
        self.process = self.shell.start("worker", "shop:app", "--json", *arguments)
        await eventually(lambda: self.registered(count))
        return [it.id for it in await self.app.workers.list()]

    async def registered(self, count: int) -> bool:
        return len(await self.app.workers.list()) == count

    async def drain(self, worker_id: str, *arguments: str) -> Answer:
        return await asyncio.to_thread(
            self.shell.perdure, "workers", "drain", worker_id, *arguments
        )

    async def code(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, MAX_WAIT_S)

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.shell.log_lines() if line["message"].startswith(message)]


@pytest_asyncio.fixture
async def plant(shell: Shell) -> AsyncIterator[Plant]:
    async with App(shell.url) as app:
        made = Plant(shell, app)

        @app.task
        async def wait(seconds: float) -> str:
            raise NotImplementedError

        try:
            yield made
        finally:
            if made.process is not None:
                made.process.kill()
                made.process.wait()


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while not await holds():  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.02)


async def test_a_drained_process_lets_its_run_end_and_exits_with_0(plant: Plant) -> None:
    [worker_id] = await plant.start()
    run = await plant.app.tasks["wait"].trigger(0.5)
    await eventually(lambda: _is_running(plant.app, run.id))

    asked = await plant.drain(worker_id, "--reason", "new release", "--by", "ada")

    assert (asked.code, asked.out) == (0, f"{worker_id} is asked to end.\n")
    assert await plant.code() == 0
    assert await run.result(1) == "waited"
    [heard] = plant.said("asked to drain")
    assert (heard["by"], heard["reason"]) == ("ada", "new release")
    [entry] = [it.entry for it in await AuditLog(plant.app.runtime).read()]
    assert (entry.action, entry.target, entry.reason) == ("drain_worker", worker_id, "new release")


async def test_one_can_wait_for_its_end(plant: Plant) -> None:
    [worker_id] = await plant.start()

    ended = await plant.drain(worker_id, "--wait", "--json")

    assert ended.code == 0
    assert (ended.json["id"], ended.json["stopped"]) == (worker_id, True)
    assert await plant.code() == 0
    listed = plant.shell.perdure("workers", "list").out
    assert " stopped " in listed


async def test_what_does_not_end_in_time_is_handed_over(plant: Plant) -> None:
    [worker_id] = await plant.start("--drain", "0.2")
    run = await plant.app.tasks["wait"].trigger(600)
    await eventually(lambda: _is_running(plant.app, run.id))

    await plant.drain(worker_id)

    assert await plant.code() == 0
    after = await run.get()
    assert (after.status, after.counters.failures) == (Status.RELEASED, 0)


async def test_of_several_processes_one_is_drained_and_not_replaced(plant: Plant) -> None:
    first, second = await plant.start("--processes", "2", count=2)

    await plant.drain(first, "--wait")
    run = await plant.app.tasks["wait"].trigger(0)
    result = await run.result(MAX_WAIT_S)
    events = await plant.app.runs.events(run.id)
    owners = {e.actor.id for e in events if e.actor.type is ActorType.WORKER}
    await plant.drain(second, "--wait")

    assert (result, owners) == ("waited", {second})
    assert await plant.code() == 0
    assert len(plant.said("worker ready")) == 2


async def test_who_is_not_there_is_told_so(plant: Plant) -> None:
    answer = await plant.drain("worker_nobody")

    assert answer.code == 1
    assert "no live worker is called 'worker_nobody'" in answer.err


async def _is_running(app: App, run_id: str) -> bool:
    return (await app.runs.get(run_id)).status is Status.RUNNING
