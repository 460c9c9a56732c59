"""`perdure bench`: numbers, and nothing left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from command import PERDURE, Shell
from perdure import App
from raw import dump, execute
from terminal import Terminal
from waiting import MAX_WAIT_S


@pytest.fixture
def shell(tmp_path: Path, storage_url: str) -> Shell:
    return Shell(tmp_path, storage_url)


def everything(url: str) -> object:
    return dump(url), execute(url, "SELECT kind, name FROM perdure_records")


async def used(url: str) -> App:
    """Somebody else's run, which nobody else's measurement may touch."""
    app = App(url)

    @app.task
    async def work() -> None: ...

    async with app:
        await work.trigger()
    return app


async def test_it_measures_and_leaves_nothing(shell: Shell) -> None:
    await used(shell.url)
    before = everything(shell.url)

    told = shell.perdure("bench", "--runs", "50", "--concurrency", "7")
    data = shell.perdure("bench", "--runs", "50", "--json").json

    assert told.code == 0
    assert "50 runs, 7 at once" in told.out
    assert min(data["triggered_per_second"], data["executed_per_second"]) > 0
    for times in (data["trigger_ms"], data["round_trip_ms"]):
        assert 0 < times["p50"] <= times["p95"] <= times["p99"]
    assert everything(shell.url) == before


async def test_interrupted_it_leaves_nothing_either(shell: Shell) -> None:
    await used(shell.url)
    before = everything(shell.url)
    process = shell.start("bench", "--runs", "200000", log="bench.log")
    async with asyncio.timeout(MAX_WAIT_S):
        while len(dump(shell.url)["runs"]) < 1000:  # noqa: ASYNC110  # another process has no event
            await asyncio.sleep(0.05)

    process.send_signal(signal.SIGINT)

    assert await asyncio.to_thread(process.wait, MAX_WAIT_S) == 1
    assert everything(shell.url) == before


def test_without_a_database_there_is_nothing_to_measure(tmp_path: Path) -> None:
    answer = Shell(tmp_path).perdure("bench")

    assert answer.code == 1
    assert "there is no database" in answer.err


async def test_whoever_sits_there_sees_how_far_it_is(shell: Shell) -> None:
    await used(shell.url)
    command = [*PERDURE, "bench", "--runs", "10"]
    with Terminal(command, cwd=shell.directory, env=shell.environ()) as terminal:
        code = terminal.end()

    assert code == 0
    assert "measuring  [####" in terminal.text
