"""`perdure worker`: one process and several, from the outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from command import Shell
from perdure import App, Task
from perdure.core.run.run import ActorType
from perdure.telemetry.prometheus import CONTENT_TYPE
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system


class Client:
    """The tasks of `shop.py`, seen from another process."""

    def __init__(self, app: App) -> None:
        @app.task
        async def double(number: int) -> int:
            raise NotImplementedError

        @app.task(queue="other")
        async def elsewhere() -> str:
            raise NotImplementedError

        @app.task
        async def wait(seconds: float) -> str:
            raise NotImplementedError

        self.app = app
        self.double: Task[[int], int] = double
        self.elsewhere: Task[[], str] = elsewhere
        self.wait: Task[[float], str] = wait


@pytest_asyncio.fixture
async def client(shell: Shell) -> AsyncIterator[Client]:
    made = Client(App(shell.url))
    async with made.app:
        yield made


class Workers:
    """Started by a test, and gone after it."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, *arguments: str, count: int = 1) -> subprocess.Popen[bytes]:
        self.process = self.shell.start("worker", "shop:app", "--json", *arguments)
        await eventually(lambda: len(self.pids("worker ready")) >= count)
        return self.process

    def pids(self, message: str) -> list[int]:
        return [line["pid"] for line in self.shell.log_lines() if line["message"] == message]

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids("worker ready"):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest_asyncio.fixture
async def workers(shell: Shell) -> AsyncIterator[Workers]:
    made = Workers(shell)
    yield made
    made.end()


async def eventually(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while not holds():  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.02)


async def code_of(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, MAX_WAIT_S)


def is_alive(pid: int) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def test_a_worker_executes_runs_and_exits_with_0(client: Client, workers: Workers) -> None:
    process = await workers.start()
    run = await client.double.trigger(21)

    assert await run.result(timeout=MAX_WAIT_S) == 42
    process.terminate()
    assert await code_of(process) == 0
    assert workers.pids("worker stopped") == [process.pid]


async def test_ctrl_c_is_as_good_as_sigterm(workers: Workers) -> None:
    process = await workers.start()

    process.send_signal(signal.SIGINT)

    assert await code_of(process) == 0


async def test_a_worker_serves_only_its_queues(client: Client, workers: Workers) -> None:
    await workers.start("--queues", "other, more")
    left, served = await client.double.trigger(1), await client.elsewhere.trigger()

    assert await served.result(timeout=MAX_WAIT_S) == "done"
    assert (await left.get()).counters.claims == 0


async def test_a_second_sigterm_exits_at_once(client: Client, workers: Workers) -> None:
    process = await workers.start()
    run = await client.wait.trigger(60)
    while (await run.get()).lease is None:  # noqa: ASYNC110  # another process claims it
        await asyncio.sleep(0.02)

    process.terminate()
    await eventually(lambda: workers.pids("worker stops"))
    process.terminate()

    assert await code_of(process) == 1


async def test_several_processes_share_the_work_and_end_together(
    client: Client, workers: Workers
) -> None:
    parent = await workers.start("--processes", "2", "--concurrency", "1", count=2)
    children = workers.pids("worker ready")

    runs = [await client.wait.trigger(2) for _ in range(2)]
    owners = set()
    for run in runs:
        assert await run.result(timeout=MAX_WAIT_S) == "waited"
        events = await client.app.runs.events(run.id)
        owners |= {event.actor.id for event in events if event.actor.type is ActorType.WORKER}
    parent.terminate()

    assert await code_of(parent) == 0
    assert len(owners) == 2
    assert not any(is_alive(pid) for pid in children)


async def test_a_process_that_dies_is_replaced(workers: Workers) -> None:
    parent = await workers.start("--processes", "2", count=2)
    [victim, _] = workers.pids("worker ready")

    os.kill(victim, signal.SIGKILL)

    await eventually(lambda: len(workers.pids("worker ready")) == 3)
    parent.terminate()
    assert await code_of(parent) == 0


async def test_children_end_with_a_killed_parent(workers: Workers) -> None:
    parent = await workers.start("--processes", "2", count=2)
    children = workers.pids("worker ready")

    parent.kill()
    parent.wait()

    await eventually(lambda: not any(is_alive(pid) for pid in children))
    assert len(workers.pids("worker stopped")) == 2


async def test_a_second_sigterm_to_the_parent_kills_the_children(
    client: Client, workers: Workers
) -> None:
    parent = await workers.start("--processes", "2", count=2)
    runs = [await client.wait.trigger(60) for _ in range(2)]
    while not all([(await run.get()).lease for run in runs]):  # noqa: ASYNC110  # as above
        await asyncio.sleep(0.02)

    parent.terminate()
    await eventually(lambda: workers.pids("worker stops"))
    parent.terminate()

    assert await code_of(parent) == 1
    assert not any(is_alive(pid) for pid in workers.pids("worker ready"))


def test_what_no_restart_would_mend_is_not_restarted(shell: Shell) -> None:
    answer = shell.perdure("worker", "shop:nothing", "--processes", "3")

    assert answer.code == 2
    assert "shop has no 'nothing'" in answer.err


def test_queues_must_be_named(shell: Shell) -> None:
    assert shell.perdure("worker", "shop:app", "--queues", ",").code == 2


def scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as response:
        assert response.headers["content-type"] == CONTENT_TYPE
        return str(response.read().decode())


async def scrape_until(address: str, expected: str) -> str:
    """The page once it has this: a worker is ready before the first pass of its services."""
    async with asyncio.timeout(MAX_WAIT_S):
        while expected not in (page := await asyncio.to_thread(scrape, address)):
            pass
    return page


async def test_every_process_serves_its_own_metrics(workers: Workers) -> None:
    parent = await workers.start("--processes", "2", "--metrics", "0", count=2)
    lines = [it for it in workers.shell.log_lines() if it["message"].startswith("metrics at ")]
    addresses = [line["address"] for line in lines]

    tick = 'perdure_last_tick_timestamp_seconds{service="maintenance"} '
    pages = [await scrape_until(address, tick) for address in addresses]

    assert len(set(addresses)) == 2
    for page in pages:
        assert re.search(r"^perdure_worker_slots [1-9]", page, re.MULTILINE)
        assert 'perdure_queue_due{queue="other"} 0\n' in page
    parent.terminate()
    assert await code_of(parent) == 0


def test_a_metrics_port_that_is_taken_ends_the_start(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answers = [
            shell.perdure("worker", "shop:app", "--metrics", port),
            shell.perdure("scheduler", "shop:app", "--metrics", port),
        ]

    for answer in answers:
        assert answer.code == 2
        assert f"cannot listen at 127.0.0.1:{port}" in answer.err
