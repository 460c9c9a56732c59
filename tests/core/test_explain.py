"""Facts in, reasons out: exactly those that hold, with a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from builders import (
    CLIENT,
    LEASE,
    OPERATOR,
    QUEUE,
    RUN_ID,
    T0,
    TASK,
    WORKER_ID,
    a_failure,
    a_policy,
    a_run,
    a_worker,
    after,
    awaiting,
    cancellation_requested,
    cancelled,
    created,
    delivery_requested,
    failed,
    history,
    lease_claimed,
    parked,
    paused,
    released,
    retry_scheduled,
    run_id,
    skipped,
    started,
    succeeded,
)
from perdure.core.decide.recovery import decide_recovery
from perdure.core.explain.inputs import MOST_COUNTED
from perdure.core.explain.wait_cycles import WaitCycle
from perdure.core.explain.why import Code, Facts, Why, explain, explain_unreadable
from perdure.core.limits.admission import Gate, LimitScope, Rule, Standing
from perdure.core.limits.rates import Pace, Rate
from perdure.core.limits.settings import Limit, Pause, Said, Wishes
from perdure.core.run.effects import DeadLetter, DeadLetterStatus
from perdure.core.run.events import Event
from perdure.core.run.failure import CRASH, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import replay
from perdure.core.run.run import Counters, OnLeaseExpired, Run, Source, SourceType

NOW = after(30)
KEY = "acme"
OF_QUEUE = Gate(LimitScope.QUEUE, QUEUE)
OF_TASK = Gate(LimitScope.TASK, TASK)
OF_KEY = Gate(LimitScope.KEY, TASK, KEY)
OF_SCHEDULE = Gate(LimitScope.SCHEDULE, "nightly")
NIGHTLY = Source(type=SourceType.SCHEDULE, schedule_id="nightly")
EXPIRED = after(LEASE.total_seconds())
HOURLY = Rate(1, per=3600)


def standing(
    rules: dict[Gate, Rule] | None = None, *, full: int = 0, dry: bool = False
) -> Standing:
    rules = rules or {}
    return Standing(
        rules={(gate.scope, gate.name): rule for gate, rule in rules.items()},
        holders=dict.fromkeys(rules, full),
        buckets=dict.fromkeys(rules, after(60)) if dry else {},
        now=NOW,
    )


def facts_of(events: Sequence[Any], **fields: Any) -> Facts:
    defaults: dict[str, Any] = {
        "run": replay(list(events)),
        "history": tuple(events),
        "now": NOW,
        "standing": standing(),
        "workers": (a_worker(),),
    }
    return Facts(**(defaults | fields))


def twice_lost() -> list[Any]:
    """The history of a run that two workers executed when they died."""
    events = history(Status.RUNNING)
    again = [lease_claimed(at=after(60)), started(at=after(60), attempt=2)]
    return [*events, delivery_requested(at=after(60)), *again, delivery_requested(at=after(120))]


def queued(*, of: dict[str, Any] | None = None, **fields: Any) -> Facts:
    return facts_of(history(Status.QUEUED, **(of or {})), **fields)


def in_status(status: Status, **fields: Any) -> Facts:
    return facts_of(history(status), **fields)


def full(gate: Gate, most: int = 1, held: int = 1, **fields: Any) -> dict[str, Any]:
    return {"standing": standing({gate: Rule(max_leases=most)}, full=held)} | fields


def dry(gate: Gate, **fields: Any) -> dict[str, Any]:
    rule = Rule(pace=Pace(timedelta(hours=1), 1))
    return {"standing": standing({gate: rule}, dry=True)} | fields


def said(gate: Gate, **fields: Any) -> dict[str, Any]:
    limit = Limit(scope=gate.scope, name=gate.name, **fields)
    return {"limits": {(gate.scope, gate.name): limit}}


def letter(**fields: Any) -> DeadLetter:
    defaults: dict[str, Any] = {
        "environment": "default",
        "task": TASK,
        "queue": QUEUE,
        "occurrence_key": None,
        "reason": "exhausted",
        "failure_kind": FailureKind.ERROR,
        "fingerprint": "f",
        "message": "boom",
    }
    return DeadLetter(run_id=RUN_ID, opened_at=T0, **(defaults | fields))


def holder(**fields: Any) -> Run:
    return replace(a_run(Status.RUNNING, run_id=run_id(2)), **fields)


KEYED = {"concurrency_key": KEY}
PAUSED = said(OF_QUEUE, pause=Pause(OPERATOR, T0, "provider is down."))
WISH = Wishes(concurrency=Said(1, OPERATOR, T0), rate=Said(HOURLY, OPERATOR, T0))
NOBODY = Wishes(concurrency=Said(0, OPERATOR, T0))
CRASHED: list[Event] = [created(), lease_claimed(), started(), retry_scheduled(failure=CRASH)]
ABANDONED: list[Event] = [
    created(),
    lease_claimed(),
    started(),
    lease_claimed(EXPIRED, token="2"),
    started(EXPIRED, attempt=2),
]


def taken_back() -> list[Event]:
    """Cancellation was asked for, and its owner never answered."""
    events = history(Status.CANCELLATION_REQUESTED)
    return [*events, *decide_recovery(replay(events), EXPIRED)]


def lost_too_often() -> list[Event]:
    policy = a_policy(on_lease_expired=OnLeaseExpired.REDELIVER, max_abandons=0)
    events = history(Status.RUNNING, policy=policy)
    return [*events, *decide_recovery(replay(events), EXPIRED)]


CASES: list[tuple[str, Facts, dict[Code, str]]] = [
    # It has ended
    ("succeeded", in_status(Status.SUCCEEDED), {Code.SUCCEEDED: "it succeeded with attempt 1."}),
    (
        "failed",
        in_status(Status.FAILED),
        {Code.FAILED: "with failure 1 of 3, in attempt 1: ValueError: boom."},
    ),
    (
        "open letter",
        in_status(Status.DEAD_LETTERED, dead_letter=letter()),
        {Code.DEAD_LETTERED: "The letter is open: replay or discard it."},
    ),
    (
        "replayed letter",
        in_status(
            Status.DEAD_LETTERED,
            dead_letter=letter(
                status=DeadLetterStatus.REPLAYED, closed_by=OPERATOR, replay_run_id=run_id(5)
            ),
        ),
        {Code.DEAD_LETTERED: f"The letter was replayed by operator grace as {run_id(5)}."},
    ),
    (
        "discarded letter",
        in_status(Status.DEAD_LETTERED, dead_letter=letter(status=DeadLetterStatus.DISCARDED)),
        {Code.DEAD_LETTERED: "The letter was discarded."},
    ),
    ("no letter", in_status(Status.DEAD_LETTERED), {Code.DEAD_LETTERED: "is not kept any more."}),
    (
        "cancelled",
        facts_of([created(), cancelled(reason="not needed")]),
        {Code.CANCELLED: "it was cancelled by operator grace: not needed."},
    ),
    ("expired", in_status(Status.EXPIRED), {Code.EXPIRED: "no attempt had begun by 2026-03-01"}),
    (
        "skipped",
        facts_of([created(), skipped(reason="overlap")]),
        {Code.SKIPPED: "it was skipped by schedule nightly: no slot was free."},
    ),
    (
        "superseded",
        facts_of([created(), skipped(reason="superseded")]),
        {
            Code.SUPERSEDED: "it was superseded by schedule nightly: "
            "a newer occurrence came before it had begun."
        },
    ),
    (
        "crashed for good",
        facts_of([created(), lease_claimed(), started(), failed(failure=CRASH)]),
        {Code.FAILED: "LeaseExpired", Code.LOST_LEASE: "attempt 1 on worker worker-1."},
    ),
    (
        "lost too often",
        facts_of(lost_too_often()),
        {Code.DEAD_LETTERED: "Abandoned", Code.LOST_LEASE: "attempt 1 on worker worker-1."},
    ),
    (
        "cancelled, and never answered",
        facts_of(taken_back()),
        {Code.CANCELLED: "by operator grace.", Code.LOST_LEASE: "attempt 1"},
    ),
    (
        "cancelled, and its worker said so",
        facts_of([*history(Status.CANCELLATION_REQUESTED), cancelled()]),
        {Code.CANCELLED: "by operator grace."},
    ),
    (
        "succeeded after a crash",
        facts_of([*ABANDONED, succeeded(EXPIRED, attempt=2)]),
        {Code.SUCCEEDED: "with attempt 2."},
    ),
    # A worker has it
    ("claimed", in_status(Status.CLAIMED), {Code.CLAIMED: "and has not begun; its lease lasts"}),
    (
        "running",
        in_status(Status.RUNNING),
        {Code.RUNNING: "Worker worker-1 has been running attempt 1 since 2026-03-01 12:00:00 UTC;"},
    ),
    (
        "cancelling",
        facts_of([*history(Status.RUNNING), cancellation_requested(reason="wrong one")]),
        {Code.CANCELLING: "asked to cancel it at 2026-03-01 12:00:00 UTC: wrong one."},
    ),
    (
        "cancelling, and silent",
        in_status(Status.CANCELLATION_REQUESTED, now=EXPIRED),
        {Code.CANCELLING: "has not stopped yet", Code.LEASE_EXPIRED: "worker-1 expired at"},
    ),
    (
        "silent",
        in_status(Status.RUNNING, now=EXPIRED),
        {Code.LEASE_EXPIRED: "once it has waited out its grace."},
    ),
    (
        "running again after a lost lease",
        facts_of(ABANDONED),
        {Code.RUNNING: "attempt 2", Code.LOST_LEASE: "attempt 1 on worker worker-1."},
    ),
    # It waits for time, for something else, or for somebody
    (
        "later",
        in_status(Status.SCHEDULED),
        {Code.SCHEDULED: "It is due at 2026-03-01 12:10:00 UTC."},
    ),
    (
        "retrying",
        facts_of([*history(Status.RUNNING), retry_scheduled(retry_at=after(99))]),
        {Code.RETRYING: "1 of 3, in attempt 1; the next attempt is due at 2026-03-01 12:01:39 UTC"},
    ),
    (
        "retrying after a crash",
        facts_of(CRASHED, now=T0),
        {Code.RETRYING: "LeaseExpired", Code.LOST_LEASE: "attempt 1"},
    ),
    (
        "released",
        facts_of([*history(Status.RUNNING), released(resume_at=after(99))]),
        {Code.RELEASED: "Its handler gave it back until 2026-03-01 12:01:39 UTC."},
    ),
    (
        "not served",
        facts_of(
            [*history(Status.RUNNING), released(resume_at=after(99), failure=a_failure("no x"))]
        ),
        {Code.NOT_SERVED: "other workers may take it at 2026-03-01 12:01:39 UTC: ValueError: no x"},
    ),
    ("waiting", in_status(Status.WAITING), {Code.WAITING: "It waits for signal 'paid'."}),
    (
        "waiting until",
        facts_of([*history(Status.RUNNING), parked(awaiting=awaiting(deadline=after(99)))]),
        {Code.WAITING: "It waits for signal 'paid', until 2026-03-01 12:01:39 UTC at the latest."},
    ),
    (
        "waited long enough",
        facts_of([*history(Status.RUNNING), parked(awaiting=awaiting(deadline=after(9)))], ahead=0),
        {Code.NEXT: "Nothing holds it"},
    ),
    (
        "held",
        facts_of([created(), paused(reason="ask legal")]),
        {Code.HELD: "It is held by operator grace since 2026-03-01 12:00:00 UTC: ask legal."},
    ),
    ("put aside", queued(is_put_aside=True), {Code.UNREADABLE: "cannot be read: some code could"}),
    (
        "reserved",
        facts_of([created(), delivery_requested(delivery={"dispatch_expires_at": after(99)})]),
        {Code.RESERVED: "until 2026-03-01 12:01:39 UTC"},
    ),
    (
        "reservation lapsed",
        facts_of([created(), delivery_requested(delivery={"dispatch_expires_at": after(9)})]),
        {Code.RESERVATION_LAPSED: "maintenance gives it back to the queue."},
    ),
    # A gate is shut
    (
        "paused queue",
        queued(**PAUSED),
        {Code.QUEUE_PAUSED: "by operator grace at 2026-03-01 12:00:00 UTC: provider is down."},
    ),
    (
        "full queue",
        queued(**full(OF_QUEUE), **said(OF_QUEUE, code=WISH)),
        {Code.QUEUE_FULL: "Queue default is full, with 1 of 1."},
    ),
    (
        "full task, and who holds it",
        queued(**full(OF_TASK, 2, 2, holders={OF_TASK: (holder(),)})),
        {Code.TASK_FULL: f"with 2 of 2, held by {run_id(2)} and 1 more."},
    ),
    (
        "full key, and others wait there",
        queued(of=KEYED, **full(OF_KEY, parked={OF_KEY: 1}, parked_at=OF_KEY)),
        {Code.KEY_FULL: "Key 'acme' of task send_email is full, with 1 of 1; 1 run waits there."},
    ),
    (
        "full schedule",
        queued(of={"source": NIGHTLY}, **full(OF_SCHEDULE, parked={OF_SCHEDULE: MOST_COUNTED})),
        {Code.SCHEDULE_FULL: "1000 or more runs wait there."},
    ),
    (
        "full, and a holder lost a lease",
        queued(**full(OF_TASK, holders={OF_TASK: (holder(counters=Counters(abandons=1)),)})),
        {Code.TASK_FULL: f"held by {run_id(2)}.", Code.LOST_LEASE: "an earlier attempt of"},
    ),
    (
        "full, and a holder has crashed",
        queued(
            **full(OF_SCHEDULE, holders={OF_SCHEDULE: (replay(CRASHED),)}), of={"source": NIGHTLY}
        ),
        {Code.SCHEDULE_FULL: f"held by {RUN_ID}.", Code.LOST_LEASE: "an earlier attempt of"},
    ),
    ("full for now", in_status(Status.SCHEDULED, **full(OF_QUEUE)), {Code.SCHEDULED: "due at"}),
    (
        "full for ever",
        in_status(Status.SCHEDULED, **full(OF_QUEUE, 0, 0)),
        {Code.SCHEDULED: "due at", Code.QUEUE_FULL: "lets nobody through: its limit is 0"},
    ),
    (
        "full for ever, and who said so",
        queued(**full(OF_QUEUE, 0, 0), **said(OF_QUEUE, operator=NOBODY)),
        {Code.QUEUE_FULL: "limit is 0, which operator grace said at 2026-03-01 12:00:00 UTC."},
    ),
    (
        "queue's rate",
        queued(**dry(OF_QUEUE), **said(OF_QUEUE, operator=WISH)),
        {Code.QUEUE_RATE: "its rate of 1/1h; the next start may be at 2026-03-01 12:01:00 UTC."},
    ),
    ("task's rate", queued(**dry(OF_TASK)), {Code.TASK_RATE: "has used up its rate; the next"}),
    ("key's rate", queued(of=KEYED, **dry(OF_KEY)), {Code.KEY_RATE: "Key 'acme' of task"}),
    (
        "schedule's rate",
        queued(of={"source": NIGHTLY}, **dry(OF_SCHEDULE)),
        {Code.SCHEDULE_RATE: "Schedule nightly has used up its rate"},
    ),
    ("rate for now", in_status(Status.SCHEDULED, **dry(OF_QUEUE)), {Code.SCHEDULED: "due at"}),
    (
        "rate with tokens left",
        queued(ahead=0, standing=standing({OF_QUEUE: Rule(pace=HOURLY.pace)})),
        {Code.NEXT: "Nothing holds it"},
    ),
    (
        "open gate",
        queued(of=KEYED, parked_at=OF_KEY),
        {Code.GATE_OPEN: "Key 'acme' of task send_email has room again; maintenance lets"},
    ),
    (
        "open gate of a paused queue",
        queued(of=KEYED, parked_at=OF_KEY, **PAUSED),
        {Code.QUEUE_PAUSED: "Queue default was paused"},
    ),
    # Nobody can take it
    ("nobody", queued(workers=()), {Code.NO_WORKER: "There is no live worker."}),
    (
        "the dead",
        queued(workers=(a_worker(is_live=False),)),
        {Code.NO_WORKER: "There is no live worker."},
    ),
    (
        "nobody who knows it",
        queued(workers=(a_worker(tasks=()),)),
        {Code.NO_WORKER_FOR_TASK: "None of the live workers knows task send_email."},
    ),
    (
        "a task nobody heard of",
        queued(workers=(a_worker(tasks=()),), is_known_task=False),
        {Code.UNKNOWN_TASK: "No app has ever said here that it knows task send_email."},
    ),
    (
        "nobody who serves it",
        queued(workers=(a_worker(queues=("reports",)),)),
        {Code.NO_WORKER_FOR_QUEUE: "No live worker that knows task send_email serves queue"},
    ),
    (
        "has a retry",
        in_status(Status.FAILED, successor="run_2"),
        {Code.FAILED: "run_2 is its retry or rerun."},
    ),
    (
        "only older versions",
        queued(
            of={"task_version": 3},
            workers=(a_worker(versions={"send_email": 2}), a_worker("2")),
        ),
        {
            Code.NO_WORKER_FOR_VERSION: "It waits for a worker with version 3 or newer of task "
            "send_email; live workers know versions 0, 2 of it."
        },
    ),
    (
        "one older version",
        queued(of={"task_version": 3}, workers=(a_worker(versions={"send_email": 2}),)),
        {Code.NO_WORKER_FOR_VERSION: "live workers know version 2 of it."},
    ),
    (
        "no version at all",
        queued(of={"task_version": 1}, workers=(a_worker(),)),
        {Code.NO_WORKER_FOR_VERSION: "live workers know no version of it."},
    ),
    (
        "its handler cannot be imported",
        queued(workers=(a_worker(not_importable={"send_email": "No module named 'mail'."}),)),
        {Code.NOT_IMPORTABLE: "can import its handler: No module named 'mail'."},
    ),
    (
        "all are stopping",
        queued(workers=(a_worker(is_stopping=True),)),
        {Code.WORKERS_STOPPING: "Every worker that could take it is stopping."},
    ),
    (
        "all hands full",
        queued(ahead=0, workers=(a_worker(running=1), a_worker("2", is_stopping=True))),
        {Code.WORKERS_FULL: "had all its places taken"},
    ),
    (
        "all hands full for now",
        in_status(Status.SCHEDULED, workers=(a_worker(running=1),)),
        {Code.SCHEDULED: "due at"},
    ),
    # It is to be executed alone
    (
        "suspect",
        facts_of(twice_lost(), ahead=3, now=after(130)),
        {
            Code.SUSPECT: "executed alone, because 2 workers in a row died while they executed it.",
            Code.LOST_LEASE: "attempt 2 on",
        },
    ),
    # It is not its turn, or it is
    (
        "one before it",
        queued(ahead=1),
        {Code.BEHIND: "1 due run comes before it in queue default."},
    ),
    (
        "two before it",
        queued(ahead=2),
        {Code.BEHIND: "2 due runs come before it in queue default."},
    ),
    (
        "handlers that await each other's runs",
        queued(ahead=5, cycle=WaitCycle((holder(), a_run()))),
        {
            Code.WAIT_CYCLE: f"{run_id(2)} (send_email) awaits the result of {RUN_ID}, and "
            f"{RUN_ID} (send_email) needs a place that {run_id(2)} holds.",
            Code.BEHIND: "5 due runs come before it",
        },
    ),
    (
        "many before it, all hands full",
        queued(ahead=MOST_COUNTED, workers=(a_worker(running=1),)),
        {Code.WORKERS_FULL: "places taken", Code.BEHIND: "1000 or more due runs come before it"},
    ),
    (
        "fair",
        queued(ahead=3, **said(OF_QUEUE, code=Wishes(fair=Said(True, CLIENT, T0)))),
        {Code.FAIR_TURN: "3 other runs are due in queue default, where keys take turns."},
    ),
    ("next", queued(ahead=0), {Code.NEXT: "the next claim from queue default may take it."}),
    # What else there is to know
    (
        "it will expire",
        queued(of={"expires_at": after(60)}, ahead=0),
        {Code.NEXT: "", Code.EXPIRES: "If no attempt has begun by 2026-03-01 12:01:00 UTC, it exp"},
    ),
    (
        "its time is over",
        queued(of={"expires_at": after(9)}, ahead=0),
        {Code.NEXT: "", Code.EXPIRES: "Its time to live passed at 2026-03-01 12:00:09 UTC;"},
    ),
    (
        "a clock that is ahead",
        in_status(Status.SCHEDULED, clock_ahead=timedelta(seconds=90)),
        {Code.SCHEDULED: "", Code.CLOCK_DIFFERS: "clock is 90.0 s ahead of the storage's"},
    ),
    (
        "a clock that is behind",
        in_status(Status.SCHEDULED, clock_ahead=timedelta(seconds=-2.5)),
        {Code.SCHEDULED: "", Code.CLOCK_DIFFERS: "clock is 2.5 s behind the storage's"},
    ),
    (
        "clocks that hardly differ",
        in_status(Status.SCHEDULED, clock_ahead=timedelta(seconds=0.5)),
        {Code.SCHEDULED: ""},
    ),
]


@pytest.mark.parametrize(("facts", "expected"), [it[1:] for it in CASES], ids=[c[0] for c in CASES])
def test_exactly_the_reasons_that_hold_are_told(facts: Facts, expected: dict[Code, str]) -> None:
    why = explain(facts)

    assert {reason.code for reason in why.reasons} == expected.keys(), why.sentence
    assert len(why.reasons) == len(expected)
    for reason in why.reasons:
        assert expected[reason.code] in reason.sentence
        assert reason.sentence.endswith(".")


def test_every_reason_there_is_has_a_case() -> None:
    assert {code for _, _, expected in CASES for code in expected} == set(Code)


def test_who_set_a_limit_is_told_with_it() -> None:
    [reason] = explain(queued(**full(OF_QUEUE), **said(OF_QUEUE, operator=WISH))).reasons

    assert (reason.who, reason.since, reason.most) == (OPERATOR, T0, 1)


def test_a_holder_is_told_with_its_lease_or_its_reservation() -> None:
    push = {"dispatch_expires_at": after(99)}
    waiting = replay(
        [created(run_id=run_id(3)), delivery_requested(run_id=run_id(3), delivery=push)]
    )
    facts = queued(**full(OF_TASK, 2, 2, holders={OF_TASK: (holder(), waiting)}))
    [reason] = explain(facts).reasons
    by_lease, by_push = reason.holders

    assert (by_lease.run_id, by_lease.worker_id, by_lease.until) == (run_id(2), WORKER_ID, EXPIRED)
    assert (by_push.run_id, by_push.worker_id, by_push.until) == (run_id(3), None, after(99))


def test_an_occurrence_that_has_begun_needs_no_slot() -> None:
    events = [
        created(source=NIGHTLY),
        lease_claimed(),
        started(),
        retry_scheduled(retry_at=after(9)),
    ]

    assert explain(facts_of(events, ahead=0, **full(OF_SCHEDULE))).codes == {Code.NEXT}


def test_a_run_that_cannot_be_read_is_told_so() -> None:
    why = explain_unreadable(RUN_ID, NOW, "it is newer; upgrade")

    assert why.status is None
    assert why.codes == {Code.UNREADABLE}
    assert str(why) == "It has been put aside because it cannot be read: it is newer; upgrade."


def test_sentences_are_joined() -> None:
    why = explain(queued(workers=(), **PAUSED))

    assert isinstance(why, Why)
    assert why.sentence.endswith("provider is down. There is no live worker.")
    assert (why.run_id, why.status, why.at) == (RUN_ID, Status.QUEUED, NOW)
