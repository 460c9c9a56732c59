"""What handlers say is kept with their run: wherever they run, bounded, before the outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import pytest
import pytest_asyncio

import process_tasks
from bell import Bell, wait_at
from fix_app import QUICK
from perdure import App, Context, LogLine, Redaction, Retry, RunHandle, RunLogHandler, current
from perdure.engine.observability import log_writer as run_logs
from perdure.errors import InvalidInput, RunCancelled, RunFailed, RunNotFound, StorageUnavailable
from perdure.storage.contract.logs import LogBatch
from perdure.storage.contract.storage import Storage
from perdure.telemetry import metrics
from waiting import MAX_WAIT_S

ONCE = Retry(max_attempts=1)


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    async with App(storage_url, defaults=QUICK) as opened:
        yield opened


async def ended(app: App, run: RunHandle[Any], seconds: float = 20) -> list[LogLine]:
    """What a run has said once it has ended, in whatever way."""
    with suppress(RunFailed, RunCancelled):
        await run.result(seconds)
    return list(await app.runs.logs(run.id))


async def lines_of(app: App, function: Callable[..., Any], **settings: Any) -> list[LogLine]:
    task = app.task(**{"retry": ONCE, **settings})(function)
    async with app.worker(concurrency=2):
        return await ended(app, await task.trigger())


def texts(lines: list[LogLine]) -> list[str]:
    return [line.message for line in lines]


# Wherever they run


async def test_an_async_handlers_lines_are_there_when_its_result_is(app: App) -> None:
    async def welcome(ctx: Context) -> None:
        ctx.log.info("to %s", "ada", extra={"locale": "de"})
        current().log.warning("slow", took=1.5)

    first, second = await lines_of(app, welcome)

    assert (first.message, first.level_name, first.fields) == ("to ada", "info", {"locale": "de"})
    assert (second.message, second.level_name, second.fields) == ("slow", "warning", {"took": 1.5})
    assert (first.attempt, first.number, second.number) == (1, 1, 2)
    assert first.logger == "perdure.task.welcome"
    assert first.at <= second.at


async def test_a_threads_lines_are_kept(app: App) -> None:
    def in_thread() -> None:
        current().log.info("from a thread")

    assert texts(await lines_of(app, in_thread)) == ["from a thread"]


async def test_a_processs_lines_and_progress_are_kept(app: App) -> None:
    speak = app.task(executor="process", retry=ONCE)(process_tasks.speak)
    async with app.worker(concurrency=1):
        run = await speak.trigger()
        [line] = await ended(app, run)

    assert (line.message, line.level_name, line.fields["shelf"]) == ("3 boxes", "warning", "b")
    progress = await app.runs.progress(run.id)
    assert progress is not None
    assert (progress.fraction, progress.message) == (0.5, "half way")


async def test_each_attempt_has_lines_of_its_own(app: App) -> None:
    @app.task(retry=Retry(max_attempts=2, initial=0))
    def twice(ctx: Context) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError

    async with app.worker(concurrency=1):
        lines = await ended(app, await twice.trigger())

    assert [line.cursor for line in lines] == ["1.1", "2.1"]
    assert texts(lines) == ["attempt 1", "attempt 2"]


async def test_the_rungs_of_the_ladder_are_lines_of_the_run(app: App, bell: Bell) -> None:
    def in_thread() -> None:
        while True:
            pass

    lines = await lines_of(app, in_thread, timeout=0.1)

    assert texts(lines) == ["asked to stop", "pressed to stop"]
    assert {line.fields["reason"] for line in lines} == {"timeout"}


# Standard logging


@pytest.fixture
def library() -> Iterator[logging.Logger]:
    """A library that logs, and whose log goes to the run's."""
    logger, handler = logging.getLogger("some.library"), RunLogHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.removeHandler(handler)


async def test_what_a_library_logs_during_an_attempt_is_kept(
    app: App, library: logging.Logger
) -> None:
    async def calls(ctx: Context) -> None:
        library.info("connecting", extra={"host": "db"})
        await asyncio.to_thread(library.warning, "slow")
        library.debug("bytes")
        ctx.log.info("done")

    library.info("outside of any attempt")
    lines = await lines_of(app, calls)

    assert texts(lines) == ["connecting", "slow", "done"]
    assert (lines[0].logger, lines[0].fields) == ("some.library", {"host": "db"})


async def test_a_run_to_be_debugged_keeps_finer_lines(app: App) -> None:
    @app.task
    async def fine(ctx: Context) -> None:
        ctx.log.debug("fine")

    async with app.worker(concurrency=2):
        without = await ended(app, await fine.trigger())
        with_debug = await ended(app, await fine.options(debug=True).trigger())

    assert (texts(without), texts(with_debug)) == ([], ["fine"])


async def test_an_exception_is_kept_with_its_traceback(app: App) -> None:
    async def caught(ctx: Context) -> None:
        try:
            raise ValueError("inner")
        except ValueError:
            ctx.log.exception("it went wrong")

    [line] = await lines_of(app, caught)

    assert (line.message, line.level_name) == ("it went wrong", "error")
    assert line.fields["traceback"].endswith("ValueError: inner")


async def test_no_line_is_worth_an_attempt(app: App) -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    async def odd(ctx: Context) -> str:
        ctx.log.info("%d of %d", 1)
        ctx.log.info("named", name="bob", args=[1], message="taken")
        ctx.log.info("lone \ud800 and \0", nan=float("nan"))
        ctx.log.info("mute", what=Mute())
        return "fine"

    task = app.task(retry=ONCE)(odd)
    logging.getLogger("perdure.task").setLevel(logging.CRITICAL)
    try:
        async with app.worker(concurrency=1):
            run = await task.trigger()
            assert await run.result(MAX_WAIT_S) == "fine"
    finally:
        logging.getLogger("perdure.task").setLevel(logging.NOTSET)
    lines = await app.runs.logs(run.id)

    assert len(lines) == 4
    assert lines[1].fields == {"name": "bob", "args": [1], "message": "taken"}
    assert "left_out" in lines[2].fields
    assert "left_out" in lines[3].fields


# Bounds


async def test_of_a_flood_the_newest_lines_are_kept_and_the_rest_is_owned_up_to(app: App) -> None:
    async def flood(ctx: Context) -> None:
        for number in range(run_logs.MOST_LINES + 500):
            ctx.log.info("line %d", number)
            if number == 700:
                await asyncio.sleep(0)  # some of them are stored before the others come

    lines = await lines_of(app, flood)

    assert texts(lines[:2]) == ["500 lines left out", "line 500"]
    assert len(lines) == 1 + run_logs.MOST_LINES
    assert lines[-1].message == f"line {run_logs.MOST_LINES + 499}"
    assert app.metrics.registry.counter(metrics.LOG_LINES_LEFT_OUT).read()[()] >= 500


async def test_lines_already_stored_go_when_newer_ones_need_the_room(
    app: App, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "MOST_LINES", 3)

    @app.task
    def waits(ctx: Context) -> None:
        for number in range(3):
            ctx.log.info("early %d", number)
        wait_at(bell.path)
        for number in range(2):
            ctx.log.info("late %d", number)

    async with app.worker(concurrency=1):
        run = await waits.trigger()
        caller = await bell.heard()
        follower = app.runs.follow(run.id)
        early = [(await anext(follower)).message for _ in range(3)]
        caller.let_go()
        await run.result(MAX_WAIT_S)

    assert early == ["early 0", "early 1", "early 2"]
    left = ["2 lines left out", "early 2", "late 0", "late 1"]
    assert texts(list(await app.runs.logs(run.id))) == left
    assert texts(list(await app.runs.logs(run.id, after="1.1"))) == ["1 line left out", *left[1:]]


async def test_endless_lines_and_heaps_of_them_are_cut(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_logs, "MOST_BYTES", 100_000)

    async def heaps(ctx: Context) -> None:
        ctx.log.info("x" * 1_000_000)
        ctx.log.info("heavy", data="y" * 1_000_000)
        for _ in range(100):
            ctx.log.info("z" * 5_000)

    lines = await lines_of(app, heaps)

    assert texts(lines[:1]) == ["82 lines left out"]
    assert [len(line.message) for line in lines[1:]] == [5_000] * 20
    alone = App(app.url, defaults=QUICK)
    [first, *_] = await lines_of(alone, lambda: current().log.info("x" * 1_000_000), name="once")
    assert first.message.endswith("more characters)")
    assert len(first.message) < run_logs.LONGEST_MESSAGE + 50


# Transactions


@pytest.mark.parametrize("every", [timedelta(0), timedelta(minutes=1)])
async def test_lines_said_during_a_transaction_are_there_when_the_result_is(
    app: App, every: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite nobody else can write them meanwhile, however long they have been waiting."""
    monkeypatch.setattr(run_logs, "EVERY", every)

    @app.task(retry=ONCE)
    async def awaits(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.log.info("first")
            await asyncio.sleep(0.05)
            ctx.progress(0.5, "half way")
        ctx.log.info("after")

    @app.task(retry=ONCE)
    def blocks(ctx: Context) -> None:
        with ctx.transaction():
            ctx.log.info("first")
        ctx.log.info("after")

    async with app.worker(concurrency=1):
        for task in (awaits, blocks):
            run = await task.trigger()
            assert texts(await ended(app, run)) == ["first", "after"]
            assert (await run.get()).status == "succeeded"
            progress = await app.runs.progress(run.id)
            assert (progress is None) is (task is blocks)


async def test_a_transaction_that_is_rolled_back_takes_no_line_along(app: App) -> None:
    async def fails(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.log.info("before")
            raise ValueError

    assert texts(await lines_of(app, fails)) == ["before"]


# Secrets


async def test_secrets_are_hidden_before_anything_is_stored(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK, redact=Redaction(keys=["iban"]))

    async def careless(ctx: Context) -> None:
        ctx.log.info("password=hunter2", token="abc", iban="DE00", user="ada")
        ctx.progress(0.5, "token=abc")

    @app.task
    async def also(ctx: Context, password: str) -> None:
        ctx.log.info("got it")

    lines = await lines_of(app, careless)
    async with app.worker(concurrency=1):
        run = await also.trigger(password="hunter2")
        await run.result(MAX_WAIT_S)
        bundle = await app.runs.bundle(run.id)

    assert lines[0].message == "password=[redacted]"
    assert lines[0].fields == {"token": "[redacted]", "iban": "[redacted]", "user": "ada"}
    assert "hunter2" not in str(bundle)
    assert [line["message"] for line in bundle.logs] == ["got it"]
    assert bundle.events[0]["type"] == "run.created"
    assert bundle.run["id"] == run.id
    assert [attempt["status"] for attempt in bundle.attempts] == ["succeeded"]


async def test_a_filter_that_fails_hides_the_line_and_not_the_run(storage_url: str) -> None:
    def broken(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        raise KeyError(message)

    app = App(storage_url, defaults=QUICK, redact=broken)
    [line] = await lines_of(app, lambda: current().log.info("password is x"), name="task")

    assert (line.message, line.fields) == ("[redacted] (KeyError in redact)", {})


# Progress


@pytest.mark.parametrize("fraction", [float("nan"), "half", None])
async def test_progress_that_is_no_number_is_refused(app: App, fraction: Any) -> None:
    @app.task(retry=ONCE)
    async def confused(ctx: Context) -> str:
        with pytest.raises(InvalidInput, match=r"^fraction: must be a number from 0 to 1, not "):
            ctx.progress(fraction)
        ctx.progress(1.0000001, "nearly")
        return "fine"

    async with app.worker(concurrency=1):
        run = await confused.trigger()
        assert await run.result(MAX_WAIT_S) == "fine"
    progress = await app.runs.progress(run.id)

    assert progress is not None
    assert (progress.fraction, progress.attempt) == (1.0, 1)


# Live


async def test_whoever_follows_gets_lines_while_the_handler_runs_and_then_the_end(
    app: App, bell: Bell
) -> None:
    @app.task
    def waits(ctx: Context) -> None:
        ctx.log.info("before")
        wait_at(bell.path)
        ctx.log.info("after")

    async with asyncio.timeout(MAX_WAIT_S), app.worker(concurrency=1):
        run = await waits.trigger()
        follower = app.runs.follow(run.id)
        first = await anext(follower)
        is_running = (await run.get()).status
        (await bell.heard()).let_go()
        rest = [line async for line in follower]

    assert (first.message, is_running) == ("before", "running")
    assert texts(rest) == ["after"]


async def test_nobody_can_follow_what_does_not_exist(app: App) -> None:
    with pytest.raises(RunNotFound):
        await anext(app.runs.follow("run_" + "0" * 32))


# Trouble


class Refusing:
    """A storage that does not take lines, for so many times."""

    def __init__(self, storage: Storage, times: int, error: Exception) -> None:
        self._storage = storage
        self._times = times
        self._error = error
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def write_logs(self, batches: list[LogBatch]) -> None:
        if self.refused < self._times:
            self.refused += 1
            raise self._error
        await self._storage.write_logs(batches)


class TroubledApp(App):
    times = 0
    error: Exception = StorageUnavailable("away")

    def open_storage(self) -> Storage:
        self.troubled = Refusing(super().open_storage(), self.times, self.error)
        return cast(Storage, self.troubled)


@pytest.mark.parametrize(
    ("times", "error", "kept"),
    [
        (1, StorageUnavailable("away"), ["said"]),
        (10_000, StorageUnavailable("away"), []),
        (1, ValueError("never"), []),
    ],
)
async def test_lines_that_cannot_be_stored_hold_up_no_outcome(
    sqlite_storage_url: str, times: int, error: Exception, kept: list[str]
) -> None:
    app = TroubledApp(sqlite_storage_url, defaults=QUICK)
    app.times, app.error = times, error

    @app.task(retry=ONCE)
    async def speaks(ctx: Context) -> str:
        ctx.log.info("said")
        return "fine"

    async with app:
        async with app.worker(concurrency=1):
            run = await speaks.trigger()
            assert await run.result(MAX_WAIT_S) == "fine"
        assert app.troubled.refused >= 1
        assert texts(list(await app.runs.logs(run.id))) == kept


async def test_progress_that_cannot_be_stored_is_not_logged_as_zero_lines(
    sqlite_storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = TroubledApp(sqlite_storage_url, defaults=QUICK)
    app.times = 1

    @app.task(retry=ONCE)
    async def moves(ctx: Context) -> str:
        ctx.progress(0.5)
        return "fine"

    async with app:
        async with app.worker(concurrency=1):
            run = await moves.trigger()
            assert await run.result(MAX_WAIT_S) == "fine"
        assert app.troubled.refused >= 1

    assert [it.message for it in caplog.records if it.name == "perdure.logs"] == []
