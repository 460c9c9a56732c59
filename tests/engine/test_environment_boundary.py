"""An environment is a boundary: what belongs to another one does not exist for an app."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from perdure import App, Context, Retry
from perdure.core.run.run import Run
from perdure.engine.operators.keys import Keys
from perdure.engine.operators.runs import DeadLetters, Runs
from perdure.errors import InvalidInput, KeyNotFound, RunNotFound
from raw import dump
from waiting import MAX_WAIT_S

Operation = Callable[[App, Any], Any]

ARGUMENTS: dict[str, dict[str, Any]] = {"reschedule": {"priority": 1}}
"""What an operation needs beside the run."""


def _operations(part: str, kind: type) -> dict[str, Operation]:
    """Every method that is given a run, so that a new one is tested without a word about it."""

    def operation(name: str) -> Operation:
        return lambda app, run: getattr(getattr(app, part), name)(run, **ARGUMENTS.get(name, {}))

    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        f"{part}.{name}": operation(name)
        for name, method in methods
        if not name.startswith("_") and "run" in inspect.signature(method).parameters
    }


BY_ID = _operations("runs", Runs) | _operations("dead_letters", DeadLetters)
del BY_ID["runs.handle"]  # reads nothing yet
BY_ID |= {
    "handle.get": lambda app, run: app.runs.handle(run).get(),
    "handle.result": lambda app, run: app.runs.handle(run).result(MAX_WAIT_S),
}


@pytest_asyncio.fixture
async def dead_run(storage_url: str) -> AsyncIterator[Run]:
    """A dead-lettered run of the environment `default`, with log lines and progress."""
    app = App(storage_url)

    @app.task(retry=Retry(max_attempts=2, initial=0.01))
    async def fail(ctx: Context) -> None:
        ctx.log.info("a line")
        ctx.progress(0.5, "half")
        raise ValueError("for good")

    async with app.run_all():
        handle = await fail.options(idempotency_key="only").trigger()
        with pytest.raises(Exception, match="for good"):
            await handle.result(MAX_WAIT_S)
        yield await handle.get()


@pytest.mark.parametrize("name", BY_ID)
async def test_an_operation_does_not_find_a_run_of_another_environment(
    dead_run: Run, storage_url: str, name: str
) -> None:
    async with App(storage_url, environment="elsewhere") as app:
        before = dump(storage_url)
        for run in (dead_run.id, dead_run):
            with pytest.raises(RunNotFound):
                await _consume(BY_ID[name](app, run))
        assert dump(storage_url) == before


async def _consume(answer: Any) -> None:
    if hasattr(answer, "__aiter__"):
        async for _ in answer:
            pass
    else:
        await answer


async def test_the_sync_facade_does_not_find_a_run_of_another_environment(
    dead_run: Run, storage_url: str
) -> None:
    with App(storage_url, environment="elsewhere").sync as sync:
        for operation in (sync.runs.get, sync.runs.cancel, sync.runs.logs, sync.dead_letters.get):
            with pytest.raises(RunNotFound):
                operation(dead_run.id)


async def test_the_runs_own_environment_still_finds_it(dead_run: Run, storage_url: str) -> None:
    async with App(storage_url) as app:
        assert await app.runs.get(dead_run.id) == dead_run
        assert (await app.runs.logs(dead_run))[0].message == "a line"
        assert await app.runs.progress(dead_run.id) is not None
        assert (await app.dead_letters.get(dead_run)).run_id == dead_run.id


async def test_a_run_continues_no_run_of_another_environment(
    dead_run: Run, storage_url: str
) -> None:
    app = App(storage_url, environment="elsewhere")

    @app.task
    async def go_on() -> None: ...

    asked = go_on.options(continuation_of=dead_run.id)
    async with app:
        with pytest.raises(RunNotFound):
            await asked.trigger()
        with pytest.raises(RunNotFound):
            await asked.trigger_many([{}])
        assert (await app.runs.list()).runs == ()


async def test_a_list_shows_only_the_apps_environment(dead_run: Run, storage_url: str) -> None:
    async with App(storage_url, environment="elsewhere") as app:
        assert (await app.runs.list()).runs == ()
        assert await app.dead_letters.list() == []
        with pytest.raises(InvalidInput):
            await app.runs.list(environment="default")  # type: ignore[call-arg]


async def test_a_key_of_another_environment_is_neither_listed_nor_changed(
    storage_url: str,
) -> None:
    async with App(storage_url) as home, App(storage_url, environment="elsewhere") as elsewhere:
        ours = await Keys(home.runtime).create("ours", ["read"])
        theirs = await Keys(home.runtime).create("theirs", ["read"], environment="elsewhere")
        before = dump(storage_url)

        for change in (Keys(elsewhere.runtime).revoke, Keys(elsewhere.runtime).rotate):
            with pytest.raises(KeyNotFound):
                await change(ours.key.id)

        assert dump(storage_url) == before
        assert [key.id for key in await Keys(elsewhere.runtime).list()] == [theirs.key.id]
        assert [key.id for key in await Keys(home.runtime).list()] == [ours.key.id]
