"""Perdure for code that cannot await: one thread, whatever is done with it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import pytest

from perdure import App
from perdure.core.run.lifecycle import Status
from perdure.errors import PerdureError, WouldBlockLoop
from waiting import MAX_WAIT_S


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.is_alive()}


def test_a_call_that_could_not_open_the_app_leaves_no_thread(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'nowhere' / 'runs.db'}")

    @app.task
    def nothing() -> None: ...

    before = threads()
    for _ in range(3):
        with pytest.raises(PerdureError):
            nothing.trigger_sync()

    assert threads() == before


def test_what_a_call_gives_uses_the_same_thread_and_closing_ends_it(app: App) -> None:
    @app.task
    def nothing() -> None: ...

    before = threads()
    run = nothing.trigger_sync()
    once = threads()
    app.sync.call(lambda twin: twin.runs.cancel(run.id))
    with pytest.raises(PerdureError, match="cancelled"):
        run.result_sync(MAX_WAIT_S)
    twice = threads()
    app.sync.close()

    assert once == twice
    assert threads() == before


async def test_a_run_asked_for_without_awaiting_can_be_awaited(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with app.run_all():
        run = await asyncio.to_thread(double.trigger_sync, 21)
        assert await run.result(MAX_WAIT_S) == 42
    await asyncio.to_thread(app.sync.close)


async def test_waiting_on_a_running_loop_is_refused_and_asking_is_not(opened: App) -> None:
    @opened.task
    def nothing() -> None: ...

    run = nothing.trigger_sync()

    with pytest.raises(WouldBlockLoop, match=r"would block the event loop .* `await run.result"):
        run.result_sync()
    assert (await run.get()).status is Status.QUEUED
    opened.sync.close()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_asks_for_itself(app: App) -> None:
    """As with `gunicorn --preload`: asked before the fork, and in every child."""

    @app.task
    def nothing() -> None: ...

    first = nothing.trigger_sync()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, nothing.trigger_sync().id.encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as answer:
        second = answer.read()
    _, status = os.waitpid(child, 0)
    found = app.sync.call(lambda twin: twin.runs.list()).runs
    app.sync.close()

    assert status == 0
    assert {run.id for run in found} == {first.id, second}
