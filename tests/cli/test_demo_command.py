"""`perdure demo`: everything in one process, and something of everything to look at."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from command import Shell
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system


class Demo:
    """A demo that is shown, and what it says."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, *arguments: str) -> dict[str, str]:
        self._process = self._shell.start("demo", "--json", "--port", "0", *arguments, log="demo")
        log = self._shell.directory / "demo"
        async with asyncio.timeout(MAX_WAIT_S):
            while not log.read_text().endswith("}\n"):  # another process
                assert self._process.poll() in (None, 0), log.read_text()
                await asyncio.sleep(0.05)
        told: dict[str, str] = json.loads(log.read_text())
        return told

    async def code(self) -> int:
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, MAX_WAIT_S)

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(Shell(tmp_path))
    yield made
    made.end()


async def answered(address: str, path: str, holds: Callable[[Any], Any]) -> Any:
    """What is there, once it is as it should be."""
    async with httpx.AsyncClient(base_url=address) as client, asyncio.timeout(MAX_WAIT_S):
        while not holds(found := (await client.get(path)).json()):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
        return found


async def test_there_is_something_of_everything_to_look_at(demo: Demo) -> None:
    told = await demo.start()
    address = told["address"]

    await answered(address, "/v1/dead-letters", lambda page: len(page["items"]) == 1)
    await answered(address, "/v1/runs?task=fetch&status=succeeded", lambda page: page["items"])
    ticks = "/v1/runs?task=greet&schedule_id=good-morning&status=succeeded"
    await answered(address, ticks, lambda page: len(page["items"]) >= 2)
    queues = await answered(address, "/v1/queues", lambda page: page["items"])
    waiting = await answered(address, "/v1/runs?queue=reports", lambda page: page["items"])
    demo.interrupt()

    assert address.startswith("http://127.0.0.1:")
    assert [it["name"] for it in queues["items"] if it["paused"]] == ["reports"]
    assert {it["status"] for it in waiting["items"]} == {"queued"}
    assert await demo.code() == 0
    assert not Path(told["database"]).parent.exists()


async def test_it_ends_by_itself_and_may_keep_its_database(demo: Demo, tmp_path: Path) -> None:
    """Twice, since a directory may have been used before."""
    for _ in range(2):
        told = await demo.start("--seconds", "1", "--dir", str(tmp_path / "kept"))
        assert await demo.code() == 0

    assert told["database"] == str(tmp_path / "kept" / "demo.db")
    listed = Shell(tmp_path, told["url"]).perdure("runs", "list", "--task", "report")
    assert listed.out.count("run_") == 4


def test_whoever_reads_is_told_where_to_look(tmp_path: Path) -> None:
    answer = Shell(tmp_path).perdure("demo", "--seconds", "0.5")

    assert answer.code == 0
    assert "http://127.0.0.1:" in answer.out
    assert "export PERDURE_URL=sqlite:////" in answer.out
    assert "perdure top" in answer.out
    assert answer.err == ""
