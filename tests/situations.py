"""Runs that do not run, each for a reason of its own, made with a real app on a real storage.

Every situation makes its run and says what `why` must answer: exactly these codes, and of each
reason at least these fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import raw
from perdure import App, Context, Fail, Retry
from perdure.core.decide import decide_release, decide_skip, decide_unserved
from perdure.core.decide.recovery import DIED_ALONE
from perdure.core.explain.why import Code, Holder
from perdure.core.limits.admission import LimitScope
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Awaiting, AwaitingKind, Run, Source, SourceType
from perdure.engine.runtime.ids import make_token
from perdure.engine.worker.record import Registration
from perdure.storage.contract.reservation import ReserveRequest
from storage_kit import (
    a_limit,
    claim,
    create,
    now,
    put_limit,
    set_limit,
    step,
    stored,
    token_of,
    wait_until,
)

GRACE = Actor(ActorType.OPERATOR, "grace")
SCHEDULE = Actor(ActorType.SCHEDULE, "nightly")
HOUR = timedelta(hours=1)
AN_INSTANT = timedelta(milliseconds=1)
QUEUE = "mail"
SEND = "send"

Expected = dict[Code, dict[str, Any]]
Situation = Callable[[App], Awaitable[tuple[str, Expected]]]

SITUATIONS: dict[str, Situation] = {}


def situation(make: Situation) -> Situation:
    SITUATIONS[make.__name__] = make
    return make


def define_tasks(app: App) -> None:
    @app.task(queue=QUEUE, retry=Retry(3, initial=3600, jitter=0), name=SEND)
    async def send() -> None: ...

    @app.task(queue=QUEUE, retry=Retry(1, on_exhausted="dead_letter"))
    async def fragile() -> None:
        raise ValueError("broken")

    @app.task(queue=QUEUE)
    async def hopeless() -> None:
        raise Fail("no such address")

    @app.task(queue=QUEUE)
    async def patient(ctx: Context) -> None:
        ctx.release(delay=3600)


async def a_worker(app: App, name: str = "worker-1", **said: Any) -> None:
    """A worker says that it is there, with places left, unless told otherwise."""
    words: dict[str, Any] = {"concurrency": 10, "running": 0, "queues": None, "stopping": False}
    words |= {"tasks": app.served_tasks} | said
    await Registration(app.clock, app.backend, name).beat(**words)


async def a_run(app: App, **options: Any) -> str:
    run = await app.tasks[SEND].options(**options).trigger()
    return run.id


async def leased(app: App, places: int = 1, **options: Any) -> list[Run]:
    fields: dict[str, Any] = {"tasks": (SEND,), "lease_ttl": HOUR} | options
    return list((await claim(app.storage, places, **fields)).runs)


async def lost(app: App, **options: Any) -> Run:
    """A run whose worker has not been heard of since its lease ended."""
    await a_run(app, **options)
    [run] = await leased(app, lease_ttl=AN_INSTANT)
    assert run.lease is not None
    await wait_until(app.storage, run.lease.expires_at)
    return run


async def a_suspect(app: App) -> str:
    """A run that two workers executed when they died."""
    run = await lost(app)
    await app.tick(grace=0)
    await expire(app, run.id)
    await app.tick(grace=0)
    return run.id


async def lost_alone(app: App) -> Run:
    """A suspect whose third worker has not been heard of since its lease ended, either."""
    return await expire(app, await a_suspect(app))


async def expire(app: App, run_id: str) -> Run:
    [run] = await leased(app, lease_ttl=AN_INSTANT, run_ids=(run_id,))
    assert run.lease is not None
    await wait_until(app.storage, run.lease.expires_at)
    return run


def held_by(run: Run) -> Holder:
    assert run.lease is not None
    return Holder(
        run_id=run.id,
        status=run.status,
        worker_id=run.lease.worker_id,
        since=run.lease.claimed_at,
        until=run.lease.expires_at,
    )


# It waits for time, for something else, or for somebody


@situation
async def it_is_due_later(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    due = now() + HOUR
    return await a_run(app, run_at=due), {Code.SCHEDULED: {"opens_at": due}}


@situation
async def its_attempt_failed_and_it_waits_for_the_next(app: App) -> tuple[str, Expected]:
    run = await lost_alone(app)
    await app.tick(grace=0)
    retrying = await app.runs.get(run.id)
    await a_worker(app)
    return run.id, {
        Code.RETRYING: {"opens_at": retrying.run_at, "failure": DIED_ALONE},
        Code.LOST_LEASE: {"run_id": run.id, "attempt": 3, "worker_id": "worker-1"},
    }


@situation
async def workers_died_while_they_executed_it(app: App) -> tuple[str, Expected]:
    run_id = await a_suspect(app)
    await a_worker(app)
    return run_id, {
        Code.SUSPECT: {"count": 2, "queue": QUEUE},
        Code.LOST_LEASE: {"run_id": run_id, "attempt": 2, "worker_id": "worker-1"},
    }


@situation
async def its_handler_gave_it_back(app: App) -> tuple[str, Expected]:
    run = await app.tasks["patient"].trigger()
    async with app.worker():
        await _until(app, run.id, Status.RELEASED)
    await a_worker(app)
    released = await run.get()
    return run.id, {Code.RELEASED: {"opens_at": released.run_at}}


@situation
async def it_waits_for_a_signal(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await a_run(app)
    [run] = await leased(app)
    deadline = now() + HOUR
    awaiting = Awaiting(kind=AwaitingKind.SIGNAL, key="paid", deadline=deadline)
    await stored(
        app.storage, step(run, decide_release(run, token_of(run), now(), awaiting=awaiting))
    )
    return run.id, {Code.WAITING: {"key": "paid", "reason": "signal", "opens_at": deadline}}


@situation
async def an_operator_holds_it(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run_id = await a_run(app)
    held = await app.runs.pause(run_id, "ask legal first", by="grace")
    who = {"who": GRACE, "since": held.updated_at, "reason": "ask legal first"}
    return run_id, {Code.HELD: who}


@situation
async def it_is_reserved_for_a_push(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run_id = await a_run(app)
    [run] = await reserved(app, HOUR)
    return run_id, {Code.RESERVED: {"opens_at": run.dispatch_expires_at}}


@situation
async def nobody_claimed_it_while_it_was_reserved(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run_id = await a_run(app)
    [run] = await reserved(app, AN_INSTANT)
    assert run.dispatch_expires_at is not None
    await wait_until(app.storage, run.dispatch_expires_at)
    return run_id, {Code.RESERVATION_LAPSED: {"since": run.dispatch_expires_at}}


async def reserved(app: App, ttl: timedelta) -> tuple[Run, ...]:
    wish = ReserveRequest(queue=QUEUE, tasks=(SEND,), places=1, ttl=ttl, commit_id=make_token())
    return (await app.storage.reserve(wish)).runs


@situation
async def newer_code_wrote_it(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    where = f"id = '{run_id if app.url.startswith('sqlite') else run_id[4:]}'"
    raw.execute(app.url, f"UPDATE perdure_runs SET state = '[]' WHERE {where}")
    await leased(app)
    return run_id, {Code.UNREADABLE: {}}


# A gate is shut


@situation
async def its_queue_is_paused(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    paused = (await app.queues.pause(QUEUE, "provider is down", by=GRACE)).paused
    assert paused is not None
    who = {"who": GRACE, "since": paused.at, "reason": "provider is down", "queue": QUEUE}
    return await a_run(app), {Code.QUEUE_PAUSED: who}


@situation
async def its_queue_is_paused_though_it_is_reserved(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    await reserved(app, HOUR)
    await app.queues.pause(QUEUE, by=GRACE)
    return run_id, {Code.RESERVED: {}, Code.QUEUE_PAUSED: {"who": GRACE}}


@situation
async def its_queue_is_full(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await app.queues.set(QUEUE, concurrency=1, by=GRACE)
    await a_run(app)
    run_id = await a_run(app)
    [holder] = await leased(app)
    full = {"queue": QUEUE, "count": 1, "most": 1, "who": GRACE, "holders": (held_by(holder),)}
    return run_id, {Code.QUEUE_FULL: full}


@situation
async def its_queue_lets_nobody_through(app: App) -> tuple[str, Expected]:
    """That will be so tomorrow, too."""
    await a_worker(app)
    await app.queues.set(QUEUE, concurrency=0, by=GRACE)
    full = {"count": 0, "most": 0, "holders": ()}
    return await a_run(app, delay=3600), {Code.SCHEDULED: {}, Code.QUEUE_FULL: full}


@situation
async def its_task_is_full_of_more_than_are_named(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await app.limits.set(SEND, concurrency=12, by=GRACE)
    for _ in range(12):
        await a_run(app)
    run_id = await a_run(app)
    holders = sorted(await leased(app, 13), key=lambda run: run.id)
    named = tuple(held_by(run) for run in holders[:10])
    full = {"task": SEND, "count": 12, "most": 12, "holders": named}
    return run_id, {Code.TASK_FULL: full}


@situation
async def its_key_is_full_and_others_wait_there(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await app.limits.set(SEND, concurrency_per_key=1, by=GRACE)
    for _ in range(3):
        run_id = await a_run(app, concurrency_key="acme")
    [holder] = await leased(app, 3)
    full = {"task": SEND, "key": "acme", "count": 1, "most": 1, "parked": 1}
    return run_id, {Code.KEY_FULL: full | {"holders": (held_by(holder),)}}


@situation
async def its_schedule_has_no_slot(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await set_limit(app.storage, LimitScope.SCHEDULE, "nightly", 1)
    source = Source(type=SourceType.SCHEDULE, schedule_id="nightly")
    for _ in range(2):
        run = await create(app.storage, task=SEND, queue=QUEUE, source=source)
    [holder] = await leased(app, 2)
    full = {"schedule_id": "nightly", "count": 1, "most": 1, "holders": (held_by(holder),)}
    return run.id, {Code.SCHEDULE_FULL: full}


@situation
async def its_queue_has_used_up_its_rate(app: App) -> tuple[str, Expected]:
    await app.queues.set(QUEUE, rate="1/1h", by=GRACE)
    run_id, opens_at = await _second(app)
    return run_id, {Code.QUEUE_RATE: {"queue": QUEUE, "opens_at": opens_at, "who": GRACE}}


@situation
async def its_task_has_used_up_its_rate(app: App) -> tuple[str, Expected]:
    await app.limits.set(SEND, rate="1/1h", by=GRACE)
    run_id, opens_at = await _second(app)
    return run_id, {Code.TASK_RATE: {"task": SEND, "opens_at": opens_at}}


@situation
async def its_key_has_used_up_its_rate(app: App) -> tuple[str, Expected]:
    await app.limits.set(SEND, rate_per_key="1/1h", by=GRACE)
    run_id, opens_at = await _second(app, concurrency_key="acme")
    return run_id, {Code.KEY_RATE: {"task": SEND, "key": "acme", "opens_at": opens_at}}


async def _second(app: App, **options: Any) -> tuple[str, Any]:
    """Of two runs, the one that is not claimed; and when the token for it comes."""
    await a_worker(app)
    await a_run(app, **options)
    run_id = await a_run(app, **options)
    [first] = await leased(app, 2)
    assert first.lease is not None
    return run_id, first.lease.claimed_at + HOUR


@situation
async def its_key_has_room_again_and_nobody_has_let_it_in(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await app.limits.set(SEND, concurrency_per_key=1)
    for _ in range(2):
        run_id = await a_run(app, concurrency_key="acme")
    await leased(app, 2)
    await put_limit(app.storage, a_limit(LimitScope.KEY, SEND, 2))
    return run_id, {Code.GATE_OPEN: {"task": SEND, "key": "acme"}}


@situation
async def two_gates_are_shut(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await app.limits.set(SEND, concurrency=1)
    await a_run(app)
    run_id = await a_run(app)
    [holder] = await leased(app)
    await app.queues.pause(QUEUE)
    full = {"holders": (held_by(holder),)}
    return run_id, {Code.QUEUE_PAUSED: {"queue": QUEUE}, Code.TASK_FULL: full}


@situation
async def code_of_a_holder_may_still_be_running(app: App) -> tuple[str, Expected]:
    await app.limits.set(SEND, concurrency=1)
    holder = await lost(app)
    await app.tick(grace=0)
    await app.runs.reschedule(holder.id, run_at=now())
    await leased(app)
    await a_worker(app)
    full = {"count": 1, "most": 1}
    return await a_run(app), {Code.TASK_FULL: full, Code.LOST_LEASE: {"run_id": holder.id}}


# Nobody can take it


@situation
async def no_worker_is_there(app: App) -> tuple[str, Expected]:
    return await a_run(app), {Code.NO_WORKER: {"count": 0, "workers": ()}}


@situation
async def no_worker_knows_its_task(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    other = App(app.url, defaults=app.defaults)
    async with other:
        await a_worker(other, "other")
    return run_id, {Code.NO_WORKER_FOR_TASK: {"task": SEND, "workers": ("other",)}}


@situation
async def no_worker_serves_its_queue(app: App) -> tuple[str, Expected]:
    await a_worker(app, queues=("reports",))
    nobody = {"queue": QUEUE, "workers": ("worker-1",)}
    return await a_run(app), {Code.NO_WORKER_FOR_QUEUE: nobody}


@situation
async def every_worker_has_an_older_version_of_its_task(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run = await create(app.storage, task=SEND, queue=QUEUE, task_version=2)
    return run.id, {Code.NO_WORKER_FOR_VERSION: {"task": SEND, "workers": ("worker-1",)}}


@situation
async def no_worker_can_import_its_handler(app: App) -> tuple[str, Expected]:
    await a_worker(app, not_importable={SEND: "No module named 'mail'"})
    return await a_run(app), {Code.NOT_IMPORTABLE: {"task": SEND, "workers": ("worker-1",)}}


@situation
async def the_code_of_a_worker_could_not_execute_it(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run_id = await a_run(app)
    [run] = await leased(app)
    failure = make_failure(FailureKind.REJECTED, type="InvalidPayload", message="no x")
    events = decide_unserved(run, token_of(run), now(), failure, misfit="digest")
    [returned] = await stored(app.storage, step(run, events))
    return run_id, {Code.NOT_SERVED: {"opens_at": returned.run_at, "failure": failure}}


@situation
async def nobody_has_ever_heard_of_its_task(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run = await create(app.storage, task="forgotten", queue=QUEUE)
    return run.id, {Code.UNKNOWN_TASK: {"task": "forgotten"}}


@situation
async def every_worker_is_full(app: App) -> tuple[str, Expected]:
    await a_worker(app, concurrency=4, running=4)
    await a_worker(app, "reporter", queues=("reports",))
    return await a_run(app), {Code.WORKERS_FULL: {"workers": ("worker-1",), "count": 1}}


@situation
async def every_worker_is_stopping(app: App) -> tuple[str, Expected]:
    await a_worker(app, stopping=True)
    return await a_run(app), {Code.WORKERS_STOPPING: {"workers": ("worker-1",)}}


@situation
async def every_worker_has_ended(app: App) -> tuple[str, Expected]:
    await a_worker(app, stopping=True, stopped=True)
    return await a_run(app), {Code.NO_WORKER: {"workers": ("worker-1",)}}


# It is not its turn, or it is


@situation
async def others_come_before_it(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    for _ in range(2):
        await a_run(app)
    run_id = await a_run(app)
    await a_run(app, priority=5)
    await a_run(app)
    await a_run(app, delay=3600)
    return run_id, {Code.BEHIND: {"queue": QUEUE, "count": 3}}


@situation
async def others_come_before_it_and_every_worker_is_full(app: App) -> tuple[str, Expected]:
    await a_worker(app, concurrency=1, running=1)
    await a_run(app)
    return await a_run(app), {Code.WORKERS_FULL: {}, Code.BEHIND: {"count": 1}}


@situation
async def keys_take_turns_and_others_are_due(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    await app.queues.set(QUEUE, fair=True)
    run_id = await a_run(app, concurrency_key="acme")
    for _ in range(3):
        await a_run(app, concurrency_key="bolt")
    return run_id, {Code.FAIR_TURN: {"queue": QUEUE, "key": "acme", "count": 3}}


@situation
async def nothing_holds_it(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    return await a_run(app), {Code.NEXT: {"queue": QUEUE}}


@situation
async def its_time_to_live_counts(app: App) -> tuple[str, Expected]:
    await a_worker(app)
    run_id = await a_run(app, ttl=3600)
    run = await app.runs.get(run_id)
    return run_id, {Code.NEXT: {}, Code.EXPIRES: {"ends_at": run.expires_at}}


# A worker has it


@situation
async def a_worker_claimed_it_and_has_not_begun(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    [run] = await leased(app, start=0)
    assert run.lease is not None
    lease = {"since": run.lease.claimed_at, "until": run.lease.expires_at, "attempt": None}
    return run_id, {Code.CLAIMED: lease | {"worker_id": "worker-1"}}


@situation
async def it_is_running(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    [run] = await leased(app)
    assert run.lease is not None
    lease = {"since": run.started_at, "until": run.lease.expires_at, "attempt": 1}
    return run_id, {Code.RUNNING: lease | {"worker_id": "worker-1"}}


@situation
async def its_worker_has_been_asked_to_stop(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    await leased(app)
    after = await app.runs.cancel(run_id, "wrong customer", by="grace")
    asked = {"who": GRACE, "since": after.updated_at, "reason": "wrong customer"}
    return run_id, {Code.CANCELLING: asked | {"worker_id": "worker-1", "attempt": 1}}


@situation
async def its_worker_is_silent(app: App) -> tuple[str, Expected]:
    run = await lost(app)
    assert run.lease is not None
    gone = {"worker_id": "worker-1", "since": run.lease.expires_at, "attempt": 1}
    return run.id, {Code.LEASE_EXPIRED: gone}


# It has ended


@situation
async def it_succeeded(app: App) -> tuple[str, Expected]:
    run = await app.tasks[SEND].trigger()
    async with app.worker():
        await _until(app, run.id, Status.SUCCEEDED)
    return run.id, {Code.SUCCEEDED: {"since": (await run.get()).finished_at, "attempt": 1}}


@situation
async def it_failed(app: App) -> tuple[str, Expected]:
    run = await app.tasks["hopeless"].trigger()
    async with app.worker():
        await _until(app, run.id, Status.FAILED)
    return run.id, {Code.FAILED: {"failure": (await run.get()).failure}}


@situation
async def it_is_a_dead_letter(app: App) -> tuple[str, Expected]:
    run = await app.tasks["fragile"].trigger()
    async with app.worker():
        await _until(app, run.id, Status.DEAD_LETTERED)
    return run.id, {Code.DEAD_LETTERED: {"failure": (await run.get()).failure, "run_id": None}}


@situation
async def it_was_cancelled(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app)
    await app.runs.cancel(run_id, "not needed", by="grace")
    return run_id, {Code.CANCELLED: {"who": GRACE, "reason": "not needed"}}


@situation
async def it_expired(app: App) -> tuple[str, Expected]:
    run_id = await a_run(app, ttl=0.001)
    expires_at = (await app.runs.get(run_id)).expires_at
    assert expires_at is not None
    await wait_until(app.storage, expires_at)
    await app.tick(grace=0)
    return run_id, {Code.EXPIRED: {"ends_at": expires_at}}


@situation
async def its_schedule_skipped_it(app: App) -> tuple[str, Expected]:
    return await _skipped(app, "overlap"), {Code.SKIPPED: {"who": SCHEDULE, "reason": "overlap"}}


@situation
async def a_newer_occurrence_superseded_it(app: App) -> tuple[str, Expected]:
    return await _skipped(app, "superseded"), {Code.SUPERSEDED: {"who": SCHEDULE}}


async def _skipped(app: App, reason: str) -> str:
    run = await app.runs.get(await a_run(app))
    await stored(app.storage, step(run, decide_skip(run, SCHEDULE, now(), reason)))
    return run.id


async def _until(app: App, run_id: str, status: Status) -> None:
    """Workers are at it: until it is done."""
    while (await app.runs.get(run_id)).status is not status:
        await wait_until(app.storage, now() + timedelta(milliseconds=10))
