"""A process whose handlers ran in threads can still be profiled, traced and covered.

CPython 3.11 looks for an interruption for ever, if one was announced that nobody takes; and while
it looks, a profiled function does not get past its first instruction. No timeout of ours or of
pytest's ends that, so it is tried in a process that can be killed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waiting import MAX_WAIT_S

PROFILED = """
import asyncio, sys
from datetime import timedelta

from perdure import App, Retry
from perdure.engine.attempt.exits import AttemptStopped
from perdure.engine.runtime.defaults import Defaults

app = App(sys.argv[1], defaults=Defaults(cancel_grace=timedelta(milliseconds=50)))

@app.task
def ends_by_itself() -> None:
    pass

@app.task(timeout=0.1, retry=Retry(max_attempts=1))
def is_interrupted() -> None:
    while True:
        pass

@app.task(timeout=0.1, retry=Retry(max_attempts=1))
def resists() -> None:
    try:
        while True:
            pass
    except AttemptStopped:
        pass

async def work(name: str) -> None:
    async with app, app.worker():
        run = await app.tasks[name].trigger()
        await asyncio.gather(run.result(30), return_exceptions=True)

asyncio.run(work(sys.argv[2]))
sys.setprofile(lambda frame, event, argument: None)
(lambda: print("went on"))()
"""


@pytest.mark.parametrize("task", ["ends_by_itself", "is_interrupted", "resists"])
def test_after_a_handler_in_a_thread_a_profiled_function_goes_on(
    sqlite_storage_url: str, task: str, tmp_path: Path
) -> None:
    script = tmp_path / "profiled.py"
    script.write_text(PROFILED)

    done = subprocess.run(
        [sys.executable, str(script), sqlite_storage_url, task],
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )

    assert done.stdout == "went on\n", done.stderr
