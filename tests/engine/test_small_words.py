"""Small things that were taken in silence, or refused although they make sense."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import App, Context
from perdure.errors import InvalidInput, RunNotFound, WorkerNotFound
from waiting import MAX_WAIT_S

UNKNOWN = f"run_{7:032x}"


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    app = App(sqlite_storage_url)

    @app.task
    async def work(ctx: Context) -> None:
        ctx.log.info("said", level="a", msg="b", self="c", extra="d", name="e")
        ctx.log.warning("plain", extra={"f": 1})

    return app


async def test_fields_of_a_log_line_may_have_any_name(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.task")
    async with app.run_all():
        run = await app.tasks["work"].trigger()
        await run.result(MAX_WAIT_S)
        said, plain = await app.runs.logs(run)

    assert said.fields == {"level": "a", "msg": "b", "self": "c", "extra": "d", "name": "e"}
    assert plain.fields == {"f": 1}
    [record] = [record for record in caplog.records if record.getMessage() == "said"]
    assert record.filename == "test_small_words.py"
    assert record.funcName == "work"


async def test_what_a_run_said_that_there_is_not_is_not_nothing(app: App) -> None:
    async with app:
        with pytest.raises(RunNotFound):
            await app.runs.logs(UNKNOWN)
        with pytest.raises(RunNotFound):
            await app.runs.progress(UNKNOWN)
        with pytest.raises(WorkerNotFound):
            await app.workers.leases("nosuch")


async def test_a_task_and_a_tag_may_be_given_as_they_are(app: App) -> None:
    task = app.tasks["work"]
    async with app:
        run = await task.options(tags={"team": "red"}).trigger()
        ways: list[Any] = [{"task": task}, {"tags": {"team": "red"}}, {"tags": {}}]
        for wanted in ways:
            page = await app.runs.list(**wanted)
            assert [found.id for found in page.runs] == [run.id]
        assert (await app.limits.get(task)).task == "work"
        with pytest.raises(InvalidInput, match="one tag can be looked for"):
            await app.runs.list(tags={"a": "b", "c": "d"})
        with pytest.raises(InvalidInput, match="failure_kind: must be one of"):
            await app.runs.list(failure_kind="zz")


async def test_two_handles_of_one_run_are_the_same(app: App) -> None:
    async with app:
        run, other = await app.tasks["work"].trigger(), await app.tasks["work"].trigger()
        assert app.runs.handle(run.id) == run
        assert {run, app.runs.handle(run.id)} == {run}
        assert run != other
        assert run != run.id


@pytest.mark.parametrize("name", ["", 5, None, "a\0"])
async def test_an_effect_has_a_name(app: App, name: Any) -> None:
    @app.task
    async def charge(ctx: Context) -> str:
        try:
            return ctx.idempotency_key(name)
        except InvalidInput as error:
            return str(error)

    async with app.run_all():
        assert (await charge.run()).startswith("name: must")
