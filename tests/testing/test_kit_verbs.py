"""The kit's verbs: what runs when, and what time does meanwhile."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, Context, Fail, Retry, RetryAfter
from perdure.errors import InvalidInput, RunFailed
from perdure.testing import Kit, Stuck

HOUR = timedelta(hours=1)


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    return perdure_kit


@pytest.fixture
def app(perdure_app: App) -> App:
    return perdure_app


def test_nothing_runs_before_a_verb_says_so(kit: Kit, app: App) -> None:
    done: list[int] = []
    task = app.task(_appending(done))

    run = task.trigger_sync(1)
    before = list(done)
    progress = kit.run_until_idle()

    assert (before, done) == ([], [1])
    assert progress.attempts == 1
    assert [ended.id for ended in progress.ended] == [run.id]


def _appending(done: list[int]) -> Any:
    def note(number: int) -> None:
        done.append(number)

    return note


def test_what_a_run_triggers_runs_too(kit: Kit, app: App) -> None:
    @app.task
    async def grandchild() -> str:
        return "late"

    @app.task
    def child() -> None:
        grandchild.trigger_sync()

    @app.task
    async def parent() -> None:
        await child.trigger()

    parent.trigger_sync()
    kit.run_until_idle()

    assert [run.task for run in kit.triggered()] == ["parent", "child", "grandchild"]
    kit.assert_succeeded(kit.assert_triggered(grandchild), result="late")


def test_an_idle_kit_leaves_retries_for_later_and_time_where_it_is(kit: Kit, app: App) -> None:
    task = app.task(retry=Retry(max_attempts=2, initial=3600, jitter=0))(_failing_once())
    start = kit.now

    run = task.trigger_sync()
    kit.run_until_idle()

    assert kit.get(run).status == "retrying"
    assert kit.now == start
    assert kit.next_due() == start + HOUR


def _failing_once() -> Any:
    async def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    return flaky


def test_a_backoff_of_an_hour_takes_no_time(kit: Kit, app: App) -> None:
    task = app.task(retry=Retry(max_attempts=2, initial=3600, jitter=0))(_failing_once())

    run = task.trigger_sync()
    kit.run_until_idle()
    kit.advance(HOUR - timedelta(microseconds=1))
    early = kit.get(run).status
    kit.advance(timedelta(microseconds=1))

    assert early == "retrying"
    kit.assert_succeeded(run, result=2)


def test_until_done_moves_time_as_far_as_it_must(kit: Kit, app: App) -> None:
    task = app.task(retry=Retry(max_attempts=2, initial=3600, jitter=0))(_failing_once())
    start = kit.now

    delayed = task.options(delay=86400).trigger_sync()
    kit.run_until_done()

    kit.assert_retried(delayed, times=1)
    kit.assert_succeeded(delayed)
    assert kit.now == start + timedelta(days=1) + HOUR


def test_advancing_does_what_is_due_on_the_way_each_at_its_time(kit: Kit, app: App) -> None:
    seen: list[tuple[int, datetime]] = []

    @app.task
    async def note(number: int) -> None:
        seen.append((number, kit.now))

    start = kit.now
    for number in (3, 1, 2):
        note.options(delay=number * 60).trigger_sync(number)
    kit.advance(150)

    assert seen == [(1, start + timedelta(minutes=1)), (2, start + timedelta(minutes=2))]
    assert kit.now == start + timedelta(seconds=150)


def test_time_can_be_moved_to_an_instant_but_not_back(kit: Kit) -> None:
    kit.advance_to(datetime(2030, 3, 31, 1, 30, tzinfo=UTC))

    with pytest.raises(InvalidInput, match="has passed: it is 2030-03-31"):
        kit.advance_to(datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="time zone"):
        kit.advance_to(datetime(2031, 1, 1))  # noqa: DTZ001  # the point


def test_months_pass_at_once(kit: Kit, app: App) -> None:
    run = app.task(_failing_once()).options(delay=timedelta(days=200)).trigger_sync()

    kit.advance(timedelta(days=201))

    kit.assert_succeeded(run)


def test_a_handler_that_sleeps_takes_virtual_time_only_and_keeps_its_lease(
    kit: Kit, app: App
) -> None:
    @app.task
    async def slow() -> str:
        await asyncio.sleep(3600)
        return "awake"

    start = kit.now
    run = slow.trigger_sync()
    kit.run_until_idle()

    kit.assert_succeeded(run, result="awake")
    assert kit.get(run).counters.attempts == 1
    assert kit.now == start + HOUR


def test_a_timeout_is_reached_in_virtual_time(kit: Kit, app: App) -> None:
    @app.task(timeout=30, retry=Retry(max_attempts=1))
    async def hangs() -> None:
        await asyncio.Event().wait()

    start = kit.now
    run = hangs.trigger_sync()
    kit.run_until_idle()

    kit.assert_failed(run, kind="timeout")
    assert kit.now == start + timedelta(seconds=30)


def test_a_time_to_live_passes(kit: Kit, app: App) -> None:
    run = app.task(_failing_once()).options(ttl=60).trigger_sync()

    kit.run(app.runs.pause(run.id))
    kit.advance(61)

    assert kit.get(run).status == "expired"


def test_released_and_waiting_runs_go_on_with_time(kit: Kit, app: App) -> None:
    @app.task
    async def patient(ctx: Context) -> str:
        if ctx.attempt == 1:
            ctx.release(delay=600)
        return "at last"

    @app.task
    async def waits(ctx: Context) -> str:
        if ctx.attempt == 1:
            ctx.wait_for("paid", deadline=kit.now + HOUR)
        return "nobody paid"

    released, waiting = patient.trigger_sync(), waits.trigger_sync()
    kit.run_until_idle()
    statuses = [kit.get(run).status for run in (released, waiting)]
    kit.advance(HOUR)

    assert statuses == ["released", "waiting"]
    kit.assert_succeeded(released, result="at last")
    kit.assert_succeeded(waiting, result="nobody paid")


def test_what_waits_for_a_signal_is_done_as_far_as_time_goes(kit: Kit, app: App) -> None:
    @app.task
    async def waits(ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.wait_for("paid")

    run = waits.trigger_sync()
    kit.run_until_done()

    assert kit.get(run).status == "waiting"
    assert kit.next_due() is None


def test_one_attempt_at_a_time(kit: Kit, app: App) -> None:
    done: list[int] = []
    task = app.task(_appending(done))
    for number in (1, 2):
        task.trigger_sync(number)
    task.options(delay=60).trigger_sync(3)

    seen = []
    for _ in range(4):
        progress = kit.run_next()
        seen.append((progress.attempts, list(done)))

    assert seen == [(1, [1]), (1, [1, 2]), (1, [1, 2, 3]), (0, [1, 2, 3])]


def test_one_attempt_is_not_followed_by_a_retry_that_is_due_at_once(kit: Kit, app: App) -> None:
    task = app.task(retry=Retry(max_attempts=5, initial=0))(_failing_once())
    run = task.trigger_sync()

    kit.run_next()

    assert kit.get(run).counters.attempts == 1


def test_executing_a_task_gives_its_outcome_and_touches_nothing_else(kit: Kit, app: App) -> None:
    @app.task
    async def greet(ctx: Context, name: str) -> str:
        ctx.log.info("greeting %s", name)
        ctx.log.debug("quietly")
        return f"hello {name}"

    other = greet.trigger_sync("nobody")
    execution = kit.execute(greet, "Ada")

    assert execution.result == "hello Ada"
    assert (execution.attempt, execution.status) == (1, "succeeded")
    assert execution.messages == ["greeting Ada", "quietly"]
    assert kit.get(other).counters.attempts == 0


def test_an_execution_that_fails_keeps_the_exception_itself(kit: Kit, app: App) -> None:
    problem = ValueError("no such user")

    @app.task
    def fails() -> None:
        raise problem

    execution = kit.execute(fails)

    assert execution.error is problem
    assert execution.status == "retrying"
    assert execution.failure is not None
    assert execution.failure.type == "ValueError"
    with pytest.raises(AssertionError, match="fails did not succeed, it is retrying: ValueError"):
        _ = execution.result


def test_failures_for_good_and_later_are_told_apart(kit: Kit, app: App) -> None:
    @app.task
    async def never() -> None:
        raise Fail("the card is stolen")

    @app.task
    async def later() -> None:
        raise RetryAfter(90)

    start = kit.now

    assert kit.execute(never).status == "failed"
    assert kit.execute(later).run.run_at == start + timedelta(seconds=90)


def test_awaiting_a_result_has_the_work_done_whatever_time_it_takes(kit: Kit, app: App) -> None:
    task = app.task(retry=Retry(max_attempts=2, initial=3600))(_failing_once())

    assert task.trigger_sync().result_sync(timeout=1) == 2


def test_a_result_that_nothing_will_bring_is_named(kit: Kit, app: App) -> None:
    @app.task
    async def waits(ctx: Context) -> None:
        ctx.wait_for("paid")

    run = waits.trigger_sync()

    with pytest.raises(Stuck) as stuck:
        run.result_sync()
    assert str(stuck.value) == (
        f"the result of waits ({run.id}, waiting, for signal 'paid') is awaited, "
        "but it will not end by itself"
    )


def test_a_def_handler_may_wait_for_another_run(kit: Kit, app: App) -> None:
    task = app.task(name="child", retry=Retry(max_attempts=2, initial=3600))(_failing_once())

    @app.task
    def parent() -> int:
        return int(task.trigger_sync().result_sync()) + 40

    run = parent.trigger_sync()
    kit.run_until_idle()

    kit.assert_succeeded(run, result=42)


def test_a_handler_that_waits_for_ever_is_named_with_its_line(kit: Kit, app: App) -> None:
    @app.task
    async def hangs() -> None:
        await asyncio.Event().wait()

    run = hangs.trigger_sync()

    with pytest.raises(Stuck) as stuck:
        kit.run_until_idle()
    said = str(stuck.value)
    assert said.startswith(f"hangs ({run.id}, attempt 1) still waits at test_kit_verbs.py:")
    assert said.endswith("and nothing will ever wake it")


@pytest.mark.parametrize("perdure_database", ["sqlite"])  # two thousand leaps, on any database
def test_a_handler_that_polls_for_ever_is_stopped_after_some_virtual_hours(
    kit: Kit, app: App
) -> None:
    @app.task
    async def polls() -> None:
        while True:  # noqa: ASYNC110  # the point
            await asyncio.sleep(600)

    polls.trigger_sync()

    with pytest.raises(Stuck, match="six hours of virtual time have passed, and polls"):
        kit.run_until_idle()


def test_steps_go_from_boundary_to_boundary(kit: Kit, app: App) -> None:
    @app.task
    async def two_steps() -> None:
        await asyncio.sleep(1)

    line = two_steps.function.__code__.co_firstlineno + 2
    two_steps.trigger_sync()
    labels = []
    while (boundary := kit.step()) is not None:
        labels.append(boundary.label)

    assert labels == [
        "after the claim of two_steps",
        f"two_steps (attempt 1) waits at test_kit_verbs.py:{line}",
        "two_steps (attempt 1) returns",
        "after the commit of run.succeeded of two_steps",
    ]


def test_another_source_of_instants_is_asked(kit: Kit) -> None:
    noon = kit.now + timedelta(hours=12)
    kit.also_due(lambda now: noon if now < noon else None)

    assert kit.next_due() == noon
    kit.advance(timedelta(days=1))
    assert kit.next_due() is None


def test_operators_calls_work_from_ordinary_tests(kit: Kit, app: App) -> None:
    run = app.task(_failing_once()).options(delay=60).trigger_sync()

    kit.run(app.runs.cancel(run.id, reason="changed my mind"))
    kit.run_until_done()

    assert kit.get(run).status == "cancelled"


def test_a_failed_run_raises_where_its_result_is_awaited(kit: Kit, app: App) -> None:
    @app.task(retry=Retry(max_attempts=1))
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(RunFailed, match="no"):
        fails.trigger_sync().result_sync()


def test_limits_hold(kit: Kit, app: App) -> None:
    most = 0
    here = 0

    @app.task(concurrency=2)
    async def careful() -> None:
        nonlocal most, here
        here += 1
        most = max(most, here)
        await asyncio.sleep(1)
        here -= 1

    for _ in range(6):
        careful.trigger_sync()
    kit.run_until_done()

    assert most == 2
    assert all(run.status == "succeeded" for run in kit.triggered(careful))


def test_nothing_is_due_any_more_once_it_is_cancelled(kit: Kit, app: App) -> None:
    run = app.task(_failing_once()).options(delay=60).trigger_sync()
    kit.run_until_idle()

    kit.run(app.runs.cancel(run.id))

    assert kit.next_due() is None
