"""The same test twice gives the same histories: ids, times and all."""

from __future__ import annotations

import os
import subprocess
import sys

from perdure.testing import Kit
from waiting import MAX_WAIT_S

PROGRAM = """
import asyncio
from perdure import App, Context, Retry
from perdure.core.run.codec import encode_events
from perdure.testing import Kit, point

app = App()

@app.task(retry=Retry(max_attempts=4, initial=60))
async def work(ctx: Context, number: int) -> int:
    await asyncio.sleep(number)
    if ctx.attempt <= number % 3:
        raise ValueError("again")
    await child.trigger(number)
    return number

@app.task
def child(number: int) -> None:
    point("child")

with Kit(app, seed=SEED) as kit:
    for number in range(12):
        work.options(priority=number % 4, tags={"n": str(number)}).trigger_sync(number)
    kit.crash_at_point("child")
    kit.run_until_done()
    for run in kit.triggered():
        print(run.id, run.status, run.updated_at)
        for event in kit.events(run):
            print("  ", encode_events([event.event]))
"""


def _told(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM.replace("SEED", str(seed))]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=MAX_WAIT_S, env=environment
    )
    return done.stdout


def test_two_processes_tell_the_same_story() -> None:
    first, second = _told(1, "1"), _told(1, "2")

    assert first == second
    assert first.count('"run.succeeded"') >= 24
    assert '"run.delivery_requested"' in first


def test_another_seed_tells_another_story() -> None:
    assert _told(1, "0") != _told(2, "0")


def test_every_kit_begins_with_the_same_ids() -> None:
    assert _first_id() == _first_id()


def _first_id() -> str:
    with Kit() as kit:
        return kit.app.task(name="noop")(_noop).trigger_sync().id


def _noop() -> None:
    pass
