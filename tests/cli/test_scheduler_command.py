"""`perdure scheduler`, `perdure tick` and `perdure worker` make what is scheduled."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from command import Shell
from perdure import App, every
from perdure.core.schedule import Schedule
from schedule_kit import rewound, runs_of
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system
SOON = 40


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shop = tmp_path / "shop.py"
    scheduled = "\n\n@app.schedule(every(1), overlap='allow', max_concurrency=9)\n@app.task"
    text = shop.read_text().replace("import App, Retry", "import App, Retry, every")
    shop.write_text(text.replace("\n\n@app.task(queue", f"{scheduled}(queue"))
    return shell


@pytest.fixture
def started(shell: Shell) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(MAX_WAIT_S)


async def _some_runs(shell: Shell, status: str) -> None:
    """Until there are some; told by hints, and by the poll."""
    async with App(shell.url) as app, asyncio.timeout(SOON):
        while not (await app.runs.list(schedule_id="elsewhere", status=status)).runs:
            await app.clock.sleep(timedelta(milliseconds=100))


async def test_a_scheduler_process_makes_occurrences_until_it_is_stopped(
    shell: Shell, started: list[subprocess.Popen[bytes]]
) -> None:
    process = shell.start("scheduler", "shop:app", "--json")
    started.append(process)

    await _some_runs(shell, "queued")
    process.send_signal(signal.SIGTERM)

    assert await asyncio.to_thread(process.wait, MAX_WAIT_S) == 0
    said = [line["message"] for line in shell.log_lines()]
    assert said == [
        "schedule elsewhere added, as code has it",
        "scheduler ready",
        "scheduler stopped",
    ]


async def test_a_worker_process_does_it_all(
    shell: Shell, started: list[subprocess.Popen[bytes]]
) -> None:
    started.append(shell.start("worker", "shop:app"))

    await _some_runs(shell, "succeeded")


async def test_a_tick_needs_nobodys_code(shell: Shell) -> None:
    app = App(shell.url)
    app.task(name="digest")(_nothing)
    async with app:
        schedule = await _due(app)

        answer = await asyncio.to_thread(shell.perdure, "tick")

        assert (answer.code, answer.err) == (0, "")
        assert await runs_of(app.storage, schedule)


async def _due(app: App) -> Schedule:
    await app.schedules.create("x", every(60), "digest")
    return await rewound(app, "x", timedelta(seconds=61))


async def _nothing() -> None: ...
