"""What type checkers see. mypy reads this file too: a wrong type, and an error that it does not
report (an unused ignore), fail the check; running it shows that the types tell the truth."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

import pytest

from perdure import App, Context, Retry, RunHandle
from perdure.core.run.lifecycle import Status
from perdure.errors import InvalidInput, InvalidPayload


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return App(sqlite_storage_url)


async def test_a_task_is_typed_like_the_function_it_was(app: App) -> None:
    @app.task
    def plain(n: int) -> int:
        return n

    @app.task(retry=Retry(max_attempts=2), queue="mail")
    async def with_context(ctx: Context, n: int, *, loud: bool = False) -> str:
        return f"{ctx.attempt} {n} {loud}"

    @app.task
    async def context_last(n: int, ctx: Context | None = None) -> int:
        return n if ctx is None else ctx.attempt

    assert_type(plain(3), int)
    direct: Coroutine[Any, Any, int] = context_last(3)
    assert_type(await direct, int)
    async with app.run_all():
        run = await with_context.options(priority=2).trigger(4, loud=True)
        assert_type(run, RunHandle[str])
        assert_type(await run.result(timeout=300), str)
        assert_type(await plain.run(3), int)
        assert await (await context_last.trigger(7)).result(10) == 1
        assert_type((await app.runs.get(run)).status, Status)


async def test_mistakes_are_seen_before_they_are_made(app: App) -> None:
    @app.task
    async def plain(n: int) -> int:
        return n

    async with app:
        with pytest.raises(InvalidPayload):
            await plain.trigger("x")  # type: ignore[arg-type]
        with pytest.raises(InvalidPayload):
            await plain.trigger(m=1)  # type: ignore[call-arg]
        with pytest.raises(InvalidInput):
            plain.options(dealy=3)  # type: ignore[call-arg]
        with pytest.raises(InvalidInput):
            app.task(queu="x")  # type: ignore[call-overload]
        with pytest.raises(InvalidInput):
            await app.runs.list(statsu="x")  # type: ignore[call-arg]
        with pytest.raises(InvalidInput):
            app.worker(concurency=3)  # type: ignore[call-arg]
        with pytest.raises(InvalidInput):
            app.run_all(concurency=3)  # type: ignore[call-arg]


async def test_a_release_never_comes_back(app: App) -> None:
    @app.task
    def patient(ctx: Context) -> str:
        if not ctx.run.counters.releases:
            ctx.release(delay=0)
        return "rested"

    @app.task
    async def patient_too(ctx: Context) -> str:
        if ctx.run.counters.releases:
            return "rested"
        await ctx.release(delay=0)

    @app.task
    async def patient_as_well(ctx: Context) -> str:
        if not ctx.run.counters.releases:
            ctx.release(delay=0)
        return "rested"

    async with app.run_all():
        assert await (await patient.trigger()).result(10) == "rested"
        assert await (await patient_too.trigger()).result(10) == "rested"
        assert await (await patient_as_well.trigger()).result(10) == "rested"


async def test_a_context_that_may_be_missing_is_left_out_of_a_direct_call(app: App) -> None:
    @app.task
    def plain(ctx: Context | None = None, n: int = 3) -> str:
        return f"{n} {ctx is None}"

    @app.task(queue="mail")
    async def coroutine(ctx: Context | None = None, *, n: int = 3) -> str:
        return f"{n} {ctx is None}"

    assert_type(plain(), str)
    assert_type(plain(None, 4), str)
    assert plain(n=5) == "5 True"
    assert_type(await coroutine(), str)
    assert await coroutine(n=6) == "6 True"
    with pytest.raises(InvalidPayload):
        await plain.trigger(None)  # type: ignore[arg-type]
    async with app.run_all():
        assert_type(await plain.run(7), str)
        assert await coroutine.run(n=8) == "8 False"


async def test_a_first_argument_of_any_type_is_not_taken_for_the_context(app: App) -> None:
    @app.task
    def keep(document: Any, n: int = 1) -> str:
        return f"{document} {n}"

    @app.task
    def show(thing: object) -> str:
        return str(thing)

    assert keep([1]) == "[1] 1"
    async with app.run_all():
        assert await keep.run(document=[1], n=2) == "[1] 2"
        assert_type(await show.trigger("x"), RunHandle[str])
