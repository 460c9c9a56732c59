"""However a handler raises, its run ends, and can be read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import App, Context, Fail, Retry, RetryAfter, current
from perdure.core.decide.ending import Raised
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.engine.attempt.ending import ending_of
from perdure.errors import InvalidInput, OutsideRun, RunFailed
from waiting import MAX_WAIT_S

ODD: Any = None
ONE: Any = 1


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return App(sqlite_storage_url)


class Mute(Fail):
    """An exception class with a mistake in it."""

    @property
    def message(self) -> str:
        raise RuntimeError("no words")

    @message.setter
    def message(self, message: str) -> None: ...


class Undecided(Fail):
    def __init__(self) -> None:
        super().__init__("hm")
        self.retryable = ODD


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (lambda: Fail(ValueError("cause")), "cause"),
        (lambda: Fail(5), "5"),
        (lambda: Fail(None), "None"),
        (Fail, "failed"),
        (lambda: RetryAfter(0, 5), "5"),
        (lambda: Fail("x", retryable=ODD), "retryable: must be True or False, not None"),
        (lambda: Fail("x", retryable=ONE), "retryable: must be True or False, not 1"),
        (lambda: RetryAfter(float("inf")), "delay: must be a number of seconds up to 3650 days"),
        (lambda: RetryAfter(ODD), "delay: must be seconds or a timedelta, not None"),
        (Mute, "(what it says cannot be had: RuntimeError: no words)"),
        (Undecided, "(what it says cannot be had: InvalidInput: retryable"),
    ],
)
async def test_whatever_is_raised_ends_the_run_readably(
    app: App, raised: Any, message: str
) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise raised()

    async with app.run_all():
        run = await fails.trigger()
        with pytest.raises(RunFailed) as failed:
            await run.result(MAX_WAIT_S)
        stored = await run.get()

    assert stored.status is Status.FAILED
    assert stored.failure is not None
    assert stored.failure.message.startswith(message)
    assert failed.value.failure == stored.failure
    assert failed.value.run_id == run.id


@pytest.mark.parametrize(
    "name", ["both", "naive", "no_time", "too_long", "bad_key", "bad_deadline"]
)
async def test_a_release_that_makes_no_sense_is_a_failure(app: App, name: str) -> None:
    now = datetime.now(UTC)
    words: dict[str, dict[str, Any]] = {
        "both": {"delay": 1, "until": now},
        "naive": {"until": now.replace(tzinfo=None)},
        "no_time": {"until": "tomorrow"},
        "too_long": {"delay": 1e15},
    }
    waits: dict[str, dict[str, Any]] = {
        "bad_key": {"key": 5},
        "bad_deadline": {"key": "k", "deadline": "x"},
    }

    @app.task(retry=Retry(max_attempts=1))
    async def gives_back(ctx: Context) -> None:
        if name in words:
            ctx.release(**words[name])
        ctx.wait_for(**waits[name])

    async with app.run_all():
        with pytest.raises(RunFailed, match=r"InvalidInput|InvalidValue"):
            await (await gives_back.trigger()).result(MAX_WAIT_S)


async def test_a_failure_says_what_it_was_and_where_in_the_handler(app: App) -> None:
    @app.task(retry=Retry(max_attempts=1))
    def divide(by: int) -> float:
        return 1 / by

    async with app.run_all():
        with pytest.raises(
            RunFailed, match="failed: ZeroDivisionError: division by zero"
        ) as failed:
            await (await divide.trigger(0)).result(MAX_WAIT_S)

    trace = failed.value.failure.traceback
    assert "return 1 / by" in trace
    assert "perdure/engine" not in trace


def test_an_error_of_our_own_keeps_its_trace() -> None:
    try:
        current()
    except OutsideRun as error:
        ending = ending_of(error)

    assert isinstance(ending, Raised)
    assert ending.failure.kind is FailureKind.ERROR
    assert "OutsideRun" in (ending.failure.traceback or "")


def test_outside_a_run_there_is_no_current_one() -> None:
    with pytest.raises(OutsideRun, match="inside a handler only"):
        current()
    with pytest.raises(LookupError):
        current()


def test_whether_to_try_again_is_a_yes_or_a_no() -> None:
    with pytest.raises(InvalidInput, match="retryable: must be True or False, not 'yes'"):
        Fail("x", retryable="yes")  # type: ignore[arg-type]  # that is the point
