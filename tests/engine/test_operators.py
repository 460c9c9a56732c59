"""What operators do to runs, through the app."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, Context, Retry
from perdure.core.run.attempts import AttemptStatus
from perdure.core.run.effects import DeadLetterStatus
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Actor, ActorType, SourceType
from perdure.engine.worker.record import Registration
from perdure.errors import (
    InvalidInput,
    NotAllowed,
    RunCancelled,
    SingletonConflict,
)
from waiting import MAX_WAIT_S

GRACE = Actor(ActorType.OPERATOR, "grace")


async def test_a_waiting_run_is_cancelled_at_once_and_says_by_whom(opened: App) -> None:
    @opened.task
    async def nothing() -> None: ...

    run = await nothing.trigger()
    cancelled = await opened.runs.cancel(run.id, "not needed", by=GRACE)
    again = await opened.runs.cancel(run.id)

    assert (cancelled.status, cancelled.reason) == (Status.CANCELLED, "not needed")
    assert cancelled.cancellation is not None
    assert cancelled.cancellation.actor == GRACE
    assert again == cancelled


async def test_a_running_run_is_asked_to_stop_and_stops(app: App) -> None:
    started = asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app.run_all():
        run = await long.trigger()
        await started.wait()
        asked = await app.runs.cancel(run.id, "enough")
        with pytest.raises(RunCancelled):
            await run.result(MAX_WAIT_S)
        [attempt] = await app.runs.attempts(run.id)

    assert asked.status is Status.CANCELLATION_REQUESTED
    assert attempt.status is AttemptStatus.CANCELLED


async def test_success_stands_although_a_cancellation_was_asked_for(app: App) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> str:
        started.set()
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            return "finished anyway"
        return "undisturbed"

    async with app.run_all():
        run = await stubborn.trigger()
        await started.wait()
        await app.runs.cancel(run.id)

        assert await run.result(MAX_WAIT_S) == "finished anyway"


async def test_pausing_holds_a_run_until_it_is_resumed(app: App) -> None:
    @app.task
    async def nothing() -> str:
        return "done"

    async with app:
        run = await nothing.trigger()
        paused = await app.runs.pause(run.id, "look at it first")
        async with app.worker():
            resumed = await app.runs.resume(run.id)
            assert await run.result(MAX_WAIT_S) == "done"

    assert (paused.status, resumed.status) == (Status.PAUSED, Status.QUEUED)


async def test_rescheduling_changes_time_priority_and_queue(opened: App) -> None:
    @opened.task
    async def nothing() -> None: ...

    run = await nothing.trigger()
    later = datetime.now(UTC) + timedelta(hours=1)
    moved = await opened.runs.reschedule(run.id, run_at=later, priority=3, queue="other")

    assert (moved.status, moved.run_at, moved.priority, moved.queue) == (
        Status.SCHEDULED,
        later,
        3,
        "other",
    )
    with pytest.raises(InvalidInput):
        await opened.runs.reschedule(run.id)


async def test_a_waiting_run_goes_on_when_it_is_woken(app: App) -> None:
    @app.task
    async def patient(ctx: Context) -> int:
        if ctx.attempt == 1:
            ctx.wait_for("paid")
        return ctx.attempt

    async with app.run_all():
        run = await patient.trigger()
        await _until(app, run.id, Status.WAITING)
        await app.runs.wake(run.id)

        assert await run.result(MAX_WAIT_S) == 2


async def test_a_failed_run_is_retried_as_a_new_linked_run(app: App) -> None:
    broken = True

    @app.task(retry=Retry(max_attempts=1))
    async def fragile(n: int) -> int:
        if broken:
            raise ValueError("broken")
        return n

    async with app.run_all():
        run = await fragile.trigger(1)
        await _until(app, run.id, Status.FAILED)
        broken = False
        again = await app.runs.retry(run.id, "mended", by=GRACE)
        other = await app.runs.rerun(run.id, payload={"n": 5})

        assert (await again.result(MAX_WAIT_S), await other.result(MAX_WAIT_S)) == (1, 5)
        made = await app.runs.get(again.id)
        untouched = await app.runs.get(run.id)

    assert (made.source.type, made.source.run_id) == (SourceType.MANUAL_RETRY, run.id)
    assert made.source.reason == "mended"
    assert untouched.status is Status.FAILED


async def test_only_ended_runs_are_rerun_and_only_failures_retried(opened: App) -> None:
    @opened.task
    async def nothing() -> None: ...

    run = await nothing.trigger()

    with pytest.raises(NotAllowed, match="wait until it has ended"):
        await opened.runs.rerun(run.id)
    with pytest.raises(NotAllowed, match="only failed"):
        await opened.runs.retry(run.id)


async def test_a_taken_singleton_key_refuses_a_rerun(opened: App) -> None:
    @opened.task
    async def nothing() -> None: ...

    alone = nothing.options(singleton_key="only")
    first = await alone.trigger()
    await opened.runs.cancel(first.id)
    second = await alone.trigger()

    with pytest.raises(SingletonConflict, match=second.id):
        await opened.runs.rerun(first.id)


async def _dead_letter(app: App, run_id: str) -> None:
    await _until(app, run_id, Status.DEAD_LETTERED)


async def test_a_dead_letter_is_replayed_once(app: App) -> None:
    broken = True

    @app.task(retry=Retry(max_attempts=2, initial=0.0))
    async def fragile() -> str:
        if broken:
            raise ValueError("broken")
        return "fine"

    async with app.run_all():
        run = await fragile.trigger()
        await _dead_letter(app, run.id)
        [letter] = await app.dead_letters.list()
        broken = False
        replayed = await app.dead_letters.replay(run.id, by=GRACE)

        assert letter.run_id == run.id
        assert await replayed.result(MAX_WAIT_S) == "fine"
        with pytest.raises(NotAllowed, match=f"{replayed.id} is its retry or rerun"):
            await app.dead_letters.replay(run.id)
        assert await app.dead_letters.list() == []
        [closed] = await app.dead_letters.list(status=None)
        assert (closed.status, closed.replay_run_id) == (DeadLetterStatus.REPLAYED, replayed.id)


async def test_a_dead_letter_can_be_discarded_once(app: App) -> None:
    @app.task(retry=Retry(max_attempts=2, initial=0.0))
    async def fragile() -> None:
        raise ValueError("broken")

    async with app.run_all():
        run = await fragile.trigger()
        await _dead_letter(app, run.id)
        await app.dead_letters.discard(run.id, by="alice")

        with pytest.raises(NotAllowed, match="no open dead letter"):
            await app.dead_letters.discard(run.id)
        with pytest.raises(NotAllowed, match="was discarded by alice; rerun it"):
            await app.dead_letters.replay(run.id)
        with pytest.raises(NotAllowed, match="was discarded by alice; rerun it"):
            await app.runs.retry(run.id)


async def test_lists_understand_seed_words(opened: App) -> None:
    @opened.task
    async def nothing() -> None: ...

    run = await nothing.trigger()

    assert [found.id for found in (await opened.runs.list(status="pending")).runs] == [run.id]
    with pytest.raises(InvalidInput, match="there are: scheduled, queued"):
        await opened.runs.list(status="sleeping")


async def test_workers_are_in_the_registry_while_they_work(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app, app.worker(concurrency=7, queues=["mail", "default"]) as worker:
        await (await nothing.trigger()).result(MAX_WAIT_S)
        [entry] = [w for w in await app.workers.list() if w.id == worker.id]

    assert (entry.concurrency, entry.queues, entry.tasks) == (7, ("mail", "default"), ("nothing",))
    assert entry.seen_at is not None


async def test_a_worker_that_stopped_says_so(app: App) -> None:
    async with app:
        async with app.worker() as worker:
            pass

        [entry] = [w for w in await app.workers.list() if w.id == worker.id]
        assert entry.stopping


async def test_a_worker_that_was_taken_for_dead_is_in_the_registry_again(app: App) -> None:
    async with app:
        line = Registration(app.clock, app.backend, "worker_1")
        for _ in range(3):
            await _beat(line)
        await app.storage.forget(app.environment, "worker", await app.storage.now())
        await _beat(line)

        assert [worker.id for worker in await app.workers.list()] == ["worker_1"]


async def _beat(line: Registration) -> None:
    await line.beat(concurrency=1, running=0, tasks={}, queues=None, stopping=False)


async def _until(app: App, run_id: str, status: Status) -> None:
    """Until the run is there: told by the hint that says something changed, or by the poll."""
    wanted = {
        Status.WAITING: EventType.RELEASED,
        Status.FAILED: EventType.FAILED,
        Status.DEAD_LETTERED: EventType.DEAD_LETTERED,
    }[status]
    async with asyncio.timeout(MAX_WAIT_S):
        changed = asyncio.Event()
        stop = app.hub.listen(lambda topics: changed.set())
        while wanted not in [event.type for event in await app.runs.events(run_id)]:
            changed.clear()
            await changed.wait()
        stop()
