"""A task that was renamed goes on with the runs it has under its old name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fix_app import QUICK
from perdure import App
from perdure.app.session import session_of
from perdure.engine.tasks.catalogue import find_task, known_tasks
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import InvalidInput, InvalidPayload, InvalidTask, TaskNotFound
from perdure.testing import Kit
from waiting import MAX_WAIT_S


def before(url: str) -> App:
    app = App(url, defaults=QUICK)

    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    return app


def after(url: str, **settings: Any) -> App:
    app = App(url, defaults=QUICK)

    @app.task(aliases=["greet", "welcome"], **settings)
    async def salute(name: str) -> str:
        return f"good morning, {name}"

    return app


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_a_run_under_the_old_name_is_executed_by_the_renamed_task(
    storage_url: str, executor: str
) -> None:
    old = before(storage_url)
    async with old:
        run = await old.tasks["greet"].trigger("ada")

    app = App(storage_url, defaults=QUICK)

    def salute(name: str) -> str:
        return f"good morning, {name}"

    async def salute_soon(name: str) -> str:
        return salute(name)

    app.task(name="salute", aliases=("greet",))(salute if executor == "thread" else salute_soon)
    async with asyncio.timeout(MAX_WAIT_S), app.run_all():
        assert await app.runs.handle(run.id).result() == "good morning, ada"
        assert (await app.runs.get(run.id)).task == "greet"


async def test_whoever_asks_by_an_old_name_gets_the_task_of_today(storage_url: str) -> None:
    app = after(storage_url)
    async with app:
        handle = await session_of(app).trigger_known("welcome", {"name": "ada"}, TriggerOptions())

        assert (await handle.get()).task == "salute"
        with pytest.raises(InvalidPayload):
            await session_of(app).trigger_known("welcome", {"nam": "ada"}, TriggerOptions())
        with pytest.raises(TaskNotFound):
            await find_task(app.storage, app.environment, "nobody")


async def test_what_is_called_so_now_comes_before_what_was_called_so_once(
    storage_url: str,
) -> None:
    async with before(storage_url), after(storage_url) as app:
        found = await find_task(app.storage, app.environment, "greet")

    assert found.name == "greet"


async def test_a_worker_says_that_it_knows_the_old_names(storage_url: str) -> None:
    app = after(storage_url)
    async with app:
        async with app.worker():
            pass
        [worker] = await app.workers.list()

    assert set(worker.tasks) == {"salute", "greet", "welcome"}


async def test_a_rerun_of_an_old_run_is_checked_by_the_renamed_task(storage_url: str) -> None:
    old = before(storage_url)
    async with old:
        run = await old.tasks["greet"].trigger("ada")
        await old.runs.cancel(run)

    async with after(storage_url) as app:
        with pytest.raises(InvalidPayload):
            await app.runs.rerun(run, payload={"name": 3})


async def test_the_catalogue_knows_aliases_and_what_comes_back(storage_url: str) -> None:
    async with after(storage_url) as app:
        [entry] = await known_tasks(app.storage, app.environment)

    assert entry.aliases == ("greet", "welcome")
    assert entry.result_schema == {"type": "string"}


def test_the_kit_executes_runs_by_their_old_name() -> None:
    app = after("sqlite:///nowhere.db")

    with Kit(app) as kit:
        run = app.tasks["salute"].trigger_sync("ada")
        kit.connection.execute("UPDATE perdure_runs SET task = 'greet'")
        kit.run_until_idle()

        assert kit.get(run).status == "succeeded"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"name": "another", "aliases": ["salute"]}, "aliases"),
        ({"name": "another", "aliases": ["welcome"]}, "aliases"),
        ({"name": "greet"}, "name"),
    ],
)
def test_no_two_tasks_of_an_app_have_a_name_in_common(settings: dict[str, Any], field: str) -> None:
    app = after("sqlite:///nowhere.db")

    with pytest.raises(InvalidTask, match=f"{field}: there is a task"):
        app.task(**settings)(lambda: None)

    assert set(app.served_tasks) == {"salute", "greet", "welcome"}


@pytest.mark.parametrize("aliases", ["greet", [""], [3], {"greet"}])
def test_aliases_are_a_list_of_names(aliases: Any) -> None:
    app = App("sqlite:///nowhere.db")

    with pytest.raises(InvalidInput, match="aliases: must"):
        app.task(name="salute", aliases=aliases)(lambda: None)
