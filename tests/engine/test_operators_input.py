"""What operators may say, and what they are told when it makes no sense."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from perdure import App, Retry
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import (
    InvalidInput,
    InvalidPayload,
    NotAllowed,
    PayloadTooLarge,
    RunFailed,
    RunNotFound,
    UnreadableHistory,
)
from waiting import MAX_WAIT_S

UNKNOWN = f"run_{7:032x}"


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return App(sqlite_storage_url)


async def test_an_operator_may_be_given_by_name(app: App) -> None:
    @app.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def fragile() -> None:
        raise ValueError("broken")

    async with app.run_all():
        run = await fragile.options(delay=60).trigger()
        await app.runs.pause(run, by="alice")
        await app.runs.resume(run, by="bob")
        await app.runs.reschedule(run, by="carol", priority=3)
        await app.runs.cancel(run, by="dave")
        again = await app.runs.rerun(run, by="eve")
        said = {event.actor.id for event in await app.runs.events(run)}

        with pytest.raises(RunFailed):
            await again.result(MAX_WAIT_S)
        await app.dead_letters.discard(again, by="frank")
        [letter] = await app.dead_letters.list(status="discarded")

    assert said >= {"alice", "bob", "carol", "dave"}
    assert letter.closed_by == Actor(ActorType.OPERATOR, "frank")


@pytest.mark.parametrize(
    "by",
    [5, None, ["alice"], "", "a\nb", Actor(ActorType.OPERATOR, 5)],  # type: ignore[arg-type]  # that is the point
)
async def test_anybody_else_is_refused_and_nothing_is_written(app: App, by: Any) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app:
        run = await nothing.options(delay=60).trigger()
        for act in (app.runs.cancel, app.runs.pause, app.runs.resume, app.runs.wake):
            with pytest.raises(InvalidInput, match="by"):
                await act(run, by=by)
        with pytest.raises(InvalidInput, match="by"):
            await app.runs.reschedule(run, by=by, priority=1)
        with pytest.raises(InvalidInput, match="by"):
            await app.dead_letters.discard(run, by=by)

        assert (await run.get()).status is Status.SCHEDULED


def test_an_app_has_a_name_for_itself(sqlite_storage_url: str) -> None:
    assert App(sqlite_storage_url, actor="shop").actor == Actor(ActorType.CLIENT, "shop")
    with pytest.raises(InvalidInput, match="actor: must be an operator's name or an Actor, not 5"):
        App(sqlite_storage_url, actor=5)  # type: ignore[arg-type]  # that is the point


async def test_a_run_that_cannot_be_read_is_not_said_to_be_unknown(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app:
        damaged, stateless = await nothing.trigger(), await nothing.trigger()
        with closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as file, file:
            change = "UPDATE perdure_history SET events = replace(events, '\"client\"', '5')"
            file.execute(f"{change} WHERE run_id = ?", (damaged.id,))
            file.execute("UPDATE perdure_runs SET state = '{}' WHERE id = ?", (stateless.id,))

        for run in (damaged, stateless):
            with pytest.raises(UnreadableHistory):
                await run.get()
            with pytest.raises(UnreadableHistory):
                await run.result(MAX_WAIT_S)


@pytest.mark.parametrize("run", ["nope", UNKNOWN])
async def test_an_unknown_run_is_unknown_to_every_question(app: App, run: str) -> None:
    async with app:
        for ask in (app.runs.get, app.runs.events, app.runs.attempts, app.runs.wake):
            with pytest.raises(RunNotFound, match=run):
                await ask(run)


@pytest.mark.parametrize("run", [5, None, b"run"])
async def test_what_is_no_run_is_refused(app: App, run: Any) -> None:
    async with app:
        for ask in (app.runs.get, app.runs.events, app.runs.cancel, app.runs.rerun):
            with pytest.raises(InvalidInput, match="run_id: must be a run's id or its handle, not"):
                await ask(run)


async def test_a_run_may_be_given_by_its_handle_or_as_itself(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app:
        handle = await nothing.trigger()
        run = await app.runs.get(handle)

        assert [event.type for event in await app.runs.events(run)] == ["run.created"]
        assert await app.runs.events(run, after=1) == []


async def test_an_ended_run_is_not_woken(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app:
        run = await nothing.trigger()
        await app.runs.cancel(run)
        with pytest.raises(NotAllowed, match="it has ended"):
            await app.runs.wake(run)


async def test_another_payload_may_use_any_name_and_keeps_to_the_limit(
    sqlite_storage_url: str,
) -> None:
    app = App(sqlite_storage_url, defaults=Defaults(payload_limit=3_000_000))

    @app.task
    async def echo(reason: str) -> int:
        return len(reason)

    async with app.run_all():
        run = await echo.trigger("x" * 2_000_000)
        assert await run.result(MAX_WAIT_S) == 2_000_000
        assert await (await app.runs.rerun(run)).result(MAX_WAIT_S) == 2_000_000
        assert await (await app.runs.rerun(run, payload={"reason": "y"})).result(MAX_WAIT_S) == 1
        with pytest.raises(PayloadTooLarge):
            await app.runs.rerun(run, payload={"reason": "y" * 3_000_000})
        with pytest.raises(InvalidPayload) as refused:
            await app.runs.rerun(run, payload={"raison": "y"})
        with pytest.raises(InvalidInput, match="payload: must be a dict of arguments, not 5"):
            await app.runs.rerun(run, payload=5)  # type: ignore[arg-type]  # that is the point

    assert refused.value.field == "raison"


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ({"status": 5}, "status: must be text, not 5"),
        ({"status": ["queued", 5]}, "status: must be text, not 5"),
        ({"tagz": ("a", "b")}, "tagz: is no filter of runs; did you mean tag?"),
        ({"tag": "a"}, "tag: must be KEY=VALUE or a pair"),
        ({"queue": 5}, "queue: must be text, not 5"),
        ({"limit": 0}, "limit: must be a whole number from 1 on, not 0"),
        ({"limit": "x"}, "limit: must be a whole number"),
        ({"limit": 10**6}, "limit: must be at most 1000"),
        ({"cursor": 5}, "cursor: must be text, not 5"),
        (
            {"created_after": "2026"},
            "created_after: must be like 2030-01-31T09:00:00Z, or 1h for an hour ago",
        ),
    ],
)
async def test_a_bad_filter_is_named(app: App, filters: dict[str, Any], problem: str) -> None:
    async with app:
        with pytest.raises(InvalidInput) as refused:
            await app.runs.list(**filters)

    assert problem in str(refused.value)


async def test_bad_words_about_dead_letters_are_named(app: App) -> None:
    async with app:
        with pytest.raises(InvalidInput, match="did you mean open"):
            await app.dead_letters.list(status="opne")
        with pytest.raises(InvalidInput, match="limit: must be a whole number from 1 on, not -1"):
            await app.dead_letters.list(limit=-1)
