"""Handlers on the loop and in threads: what they find, what they raise, what they return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from perdure import App, Context, Fail, Retry, RunHandle, current
from perdure.core.run.failure import MAX_MESSAGE, Failure, FailureKind
from perdure.engine.attempt.exits import Released
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S

QUICK = Defaults(poll=timedelta(milliseconds=100), result_limit=10_000)
ONCE = Retry(max_attempts=1)

ITSELF: list[Any] = []
ITSELF.append(ITSELF)

who: ContextVar[str] = ContextVar("who")


@pytest_asyncio.fixture
async def app(sqlite_storage_url: str) -> AsyncIterator[App]:
    async with App(sqlite_storage_url, defaults=QUICK) as opened:
        yield opened


async def failure_of(run: RunHandle[Any]) -> Failure:
    with pytest.raises(RunFailed):
        await run.result(MAX_WAIT_S)
    failure = (await run.get()).failure
    assert failure is not None
    return failure


async def fails(app: App, function: Callable[..., Any], **settings: Any) -> Failure:
    """How a run of `function` fails on a worker that stays fit for the next run."""
    task = app.task(**{"retry": ONCE, **settings})(function)

    @app.task
    async def fit() -> bool:
        return True

    async with app.worker(concurrency=1):
        failure = await failure_of(await task.trigger())
        assert await (await fit.trigger()).result(MAX_WAIT_S)
    return failure


# What a handler finds


async def test_the_context_is_there_on_the_loop_and_in_threads(app: App) -> None:
    @app.task
    async def on_loop(ctx: Context) -> bool:
        return current() is ctx and await asyncio.to_thread(current) is ctx

    @app.task
    def in_thread(ctx: Context) -> bool:
        return current() is ctx

    async with app.worker(concurrency=2):
        assert await (await on_loop.trigger()).result(MAX_WAIT_S)
        assert await (await in_thread.trigger()).result(MAX_WAIT_S)
    with pytest.raises(LookupError):
        current()


async def test_handlers_see_the_variables_of_where_the_worker_began_and_not_each_others(
    app: App,
) -> None:
    def seen() -> str:
        before = who.get()
        who.set("a handler")
        return before

    @app.task
    async def on_loop() -> str:
        return seen()

    in_thread = app.task(seen)
    who.set("the host")
    async with app.worker(concurrency=1):
        for task in (on_loop, on_loop, in_thread, in_thread):
            assert await (await task.trigger()).result(MAX_WAIT_S) == "the host"


async def test_the_event_that_ends_an_attempt_says_where_the_time_went(app: App) -> None:
    @app.task(retry=Retry(max_attempts=2, initial=0))
    def twice(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    run = await twice.trigger()
    async with app.worker(concurrency=1):
        await run.result(MAX_WAIT_S)

    attempts = await app.runs.attempts(run.id)
    for attempt in attempts:
        trace = dict(attempt.execution_trace or {})
        assert trace.pop("executor") == "thread"
        assert trace.keys() == {"queue_wait_ms", "start_ms", "total_ms"}
        assert all(0 <= value < 20_000 for value in trace.values())
    assert len(attempts) == 2


# What a handler raises and returns


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
async def test_nothing_a_handler_raises_is_the_workers_end(
    app: App, error: type[BaseException]
) -> None:
    async def on_loop() -> None:
        raise error("stop it all")

    def in_thread() -> None:
        raise error("stop it all")

    for function in (on_loop, in_thread):
        failure = await fails(App(app.url, defaults=QUICK), function)
        assert (failure.kind, failure.type) == (FailureKind.ERROR, error.__name__)
        assert failure.message == "stop it all"


async def test_a_cancelled_error_nobody_asked_for_is_a_failure(app: App) -> None:
    async def confused() -> None:
        raise asyncio.CancelledError

    assert (await fails(app, confused)).type == "CancelledError"


async def test_a_group_of_errors_names_them_all(app: App) -> None:
    async def several() -> None:
        raise ExceptionGroup("both went wrong", [ValueError("left"), KeyError("right")])

    failure = await fails(app, several)

    assert failure.type == "ExceptionGroup"
    assert "both went wrong" in failure.message
    assert "ValueError: left; KeyError: 'right'" in failure.message


async def test_a_group_of_one_means_what_that_one_means(app: App) -> None:
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    async def refuse() -> None:
        raise Fail("never", retryable=False)

    failure = await fails(app, grouped, retry=Retry(max_attempts=5))

    assert (failure.type, failure.message, failure.retryable) == ("Fail", "never", False)


async def test_error_texts_are_cut_and_their_tracebacks_keep_both_ends(app: App) -> None:
    def endless() -> None:
        raise ValueError("x" * 5_000_000 + "the end")

    failure = await fails(app, endless)

    assert len(failure.message) < MAX_MESSAGE + 100
    assert failure.traceback is not None
    assert len(failure.traceback) <= MAX_MESSAGE
    assert failure.traceback.startswith("Traceback")
    assert failure.traceback.rstrip().endswith("the end")


async def test_an_error_without_a_text_and_details_without_json_are_recorded(app: App) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def mute() -> None:
        raise MuteError

    def odd() -> None:
        raise Fail("odd", details={"what": object(), "nan": float("nan"), "set": {1}})

    assert (await fails(app, mute)).type == "MuteError"
    failure = await fails(App(app.url, defaults=QUICK), odd)
    assert failure.message == "odd"
    assert failure.details is not None


async def test_a_release_until_no_particular_time_is_a_failure(app: App) -> None:
    def naive(ctx: Context) -> None:
        ctx.release(until=datetime(2030, 1, 1))  # noqa: DTZ001  # the point

    failure = await fails(app, naive)

    assert failure.type == "InvalidInput"
    assert failure.message.startswith("until: must be an instant that says its time zone, not")


async def test_an_ending_that_cannot_be_recorded_is_a_failure_and_stops_nobody(app: App) -> None:
    def until_after_the_calendar() -> None:
        raise Released(timedelta.max, None, None)

    failure = await fails(app, until_after_the_calendar)

    assert (failure.kind, failure.type) == (FailureKind.SYSTEM, "OverflowError")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object is not a JSON value"),
        (float("nan"), "JSON"),
        ("\ud800", "surrogate"),
        (ITSELF, "JSON"),
        ("x" * 20_000, "20002 bytes of JSON exceed the limit of 10000"),
    ],
    ids=["object", "nan", "surrogate", "itself", "huge"],
)
async def test_a_result_that_cannot_be_kept_fails_for_good(app: App, value: Any, why: str) -> None:
    async def returns() -> Any:
        return value

    failure = await fails(app, returns, retry=Retry(max_attempts=5))

    assert (failure.kind, failure.retryable) == (FailureKind.REJECTED, False)
    assert why in failure.message
    assert failure.type == ("PayloadTooLarge" if "exceed" in why else failure.type)
