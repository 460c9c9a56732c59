"""Code that cannot await, and what a worker says about failures."""

from __future__ import annotations

import logging
import threading

import pytest

from perdure import App, Retry
from perdure.core.run.lifecycle import Status
from perdure.errors import AppNotOpen, NotAllowed, RunFailed, RunNotFound
from waiting import MAX_WAIT_S


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return App(sqlite_storage_url)


def sync_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "perdure-sync"]


def test_operators_need_no_loop(app: App) -> None:
    @app.task
    def nothing() -> None: ...

    with app.sync:
        run = nothing.options(delay=60).trigger_sync()
        assert app.sync.runs.get(run).id == run.id
        assert run.get_sync().status is Status.SCHEDULED
        assert app.sync.runs.cancel(run.id, "enough", by="alice").status is Status.CANCELLED
        again = app.sync.runs.rerun(run)
        assert again.get_sync().source.run_id == run.id
        assert [found.id for found in app.sync.runs.list(status="cancelled").runs] == [run.id]
        assert list(app.sync.dead_letters.list()) == []
        assert list(app.sync.workers.list()) == []
        with pytest.raises(RunNotFound):
            app.sync.runs.get("nope")
        with pytest.raises(NotAllowed):
            app.sync.runs.cancel(run.id) and app.sync.runs.resume(run)
        assert sync_threads() == ["perdure-sync"]
    assert sync_threads() == []


def test_an_app_that_is_not_open_says_what_there_is_instead(app: App) -> None:
    with pytest.raises(AppNotOpen, match=r"app\.sync\.runs"):
        _ = app.runs


async def test_every_failed_attempt_is_told_with_what_follows(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=Retry(max_attempts=2, initial=0))
    async def fragile() -> None:
        raise ValueError("broken\nand more")

    @app.task(retry=Retry(max_attempts=1))
    async def once() -> None:
        raise ValueError("over")

    with caplog.at_level(logging.WARNING, "perdure.attempts"):
        async with app.run_all():
            for task in (fragile, once):
                with pytest.raises(RunFailed):
                    await (await task.trigger()).result(MAX_WAIT_S)

    told = [record for record in caplog.records if record.name == "perdure.attempts"]
    first, second, third = told
    assert "attempt 1 of fragile run_" in first.message
    assert "failed: ValueError: broken; next try at" in first.message
    assert "failed: ValueError: broken; dead-lettered: exhausted" in second.message
    assert "failed: ValueError: over; that was the end of it" in third.message
    assert (vars(first)["task"], vars(second)["attempt"]) == ("fragile", 2)
