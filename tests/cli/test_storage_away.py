"""PostgreSQL is away when a process starts, or when it is stopped: all commands behave alike."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from command import Shell
from perdure.engine.runtime.clock import SystemClock
from perdure.storage import open_storage
from perdure.testing.postgres import PrivatePostgres

pytestmark = pytest.mark.system

COMMANDS = {
    "worker": ("worker", "shop:app"),
    "two workers": ("worker", "shop:app", "--processes", "2"),
    "scheduler": ("scheduler",),
    "server": ("server", "--port", "0"),
    "dev": ("dev", "shop:app", "--port", "0", "--no-reload"),
}
PROCESSES = {"two workers": 2}
READY = ("worker ready", "scheduler ready", "server ready")
AWAITED = "the storage cannot be reached"
LONG_S = 90


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    """A server that nobody else minds losing."""
    with PrivatePostgres.start() as server:
        yield server


@pytest.fixture
def away(own_server: PrivatePostgres, tmp_path: Path) -> Iterator[Shell]:
    """A shell whose database has its schema, on a server that has been stopped."""
    url = own_server.create_database("away")
    asyncio.run(migrate(url))
    own_server.immediate_stop()
    yield Shell(tmp_path, url)
    own_server.restart()
    own_server.drop_database("away")


async def migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()


class Process:
    """One that logs JSON lines, and what it has logged."""

    def __init__(self, shell: Shell, name: str, *flags: str, **variables: str) -> None:
        self._shell = shell
        self.popen = shell.start(*COMMANDS[name], "--json", *flags, **variables)

    def count(self, *beginnings: str) -> int:
        messages = [str(line.get("message", "")) for line in self._shell.log_lines()]
        return sum(message.startswith(beginnings) for message in messages)

    async def logs(self, *beginnings: str, times: int) -> None:
        async with asyncio.timeout(LONG_S):
            while self.count(*beginnings) < times:
                assert self.popen.poll() is None, self._shell.log_lines()
                await asyncio.sleep(0.05)  # another process writes the file

    async def ends(self) -> int:
        return await asyncio.to_thread(self.popen.wait, LONG_S)


@asynccontextmanager
async def started(shell: Shell, name: str, *flags: str, **variables: str) -> AsyncIterator[Process]:
    process = Process(shell, name, *flags, **variables)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_process_waits_for_its_storage_and_logs_that_once(
    own_server: PrivatePostgres, away: Shell, name: str
) -> None:
    processes = PROCESSES.get(name, 1)
    async with started(away, name) as process:
        await process.logs(AWAITED, times=processes)
        await asyncio.to_thread(own_server.restart)
        await process.logs(*READY, times=processes)
        reached = process.count("the storage is reached")
        process.popen.send_signal(signal.SIGTERM)
        code = await process.ends()

    assert (code, process.count(AWAITED), reached) == (0, processes, processes)


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_process_that_waits_can_be_stopped(away: Shell, name: str) -> None:
    async with started(away, name) as process:
        await process.logs(AWAITED, times=PROCESSES.get(name, 1))
        process.popen.send_signal(signal.SIGTERM)

        assert await process.ends() == 0


@pytest.mark.parametrize("name", COMMANDS)
async def test_with_fail_fast_a_process_does_not_wait(away: Shell, name: str) -> None:
    async with started(away, name, "--fail-fast") as process:
        assert await process.ends() == 2
        assert process.count(AWAITED) == 0


@pytest.mark.parametrize(("name", "services"), [("worker", 2), ("server", 2), ("scheduler", 1)])
async def test_an_idle_process_ends_although_its_storage_is_away(
    own_server: PrivatePostgres, away: Shell, name: str, services: int
) -> None:
    """Its drain would be longer than this test may take. So many services log the outage at once;
    one minute later they log it again."""
    own_server.restart()
    async with started(away, name, PERDURE_DRAIN_DEADLINE="3600") as process:
        await process.logs(*READY, times=1)
        own_server.immediate_stop()
        await process.logs("storage does not answer", times=services)
        process.popen.send_signal(signal.SIGTERM)

        assert await process.ends() == 0
