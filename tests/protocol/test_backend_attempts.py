"""How attempts end: the same beside a database and at its server."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from builders import TASK, a_policy, run_id
from perdure.core.decide import decide_cancel
from perdure.core.decide.ending import Ending, GaveBack, HandedOver, Raised, Returned, Stopped
from perdure.core.decide.lease import Evidence
from perdure.core.json_text import encode_value
from perdure.core.run.backoff import Backoff
from perdure.core.run.events import RunRetryScheduled, RunSucceeded
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import WORKER, Actor, ActorType, Awaiting, AwaitingKind
from perdure.engine.execution.worker_backend import (
    Conflict,
    Finished,
    Lost,
    Recorded,
    ReportOutcome,
)
from perdure.engine.runtime.ids import make_token
from perdure.errors import LeaseLost
from protocol_side import Side
from storage_kit import history, new_run, now, reload, step, stored, token_of, wait_until
from worker_kit import WORKER_ID, finished

BOOM = make_failure(FailureKind.ERROR, type="ValueError", message="boom", details={"a": 1})
AT_ONCE = a_policy(max_attempts=3, backoff=Backoff(initial=timedelta(0)))
OPERATOR = Actor(ActorType.OPERATOR, "ada")


async def ended(side: Side, *items: Finished) -> list[ReportOutcome]:
    """Report attempts as a worker's recorder would: again after a conflict."""
    outcomes: dict[str, ReportOutcome] = {}
    pending = list(items)
    while pending := [item for item in pending if not isinstance(outcomes.get(item.token), Lost)]:
        ready = [item for item in pending if prepared(side, item, outcomes)]
        answers = await side.backend.report(ready) if ready else []
        outcomes |= dict(zip([item.token for item in ready], answers, strict=True))
        pending = [item for item in ready if isinstance(outcomes[item.token], Conflict)]
        await side.backend.refresh(pending)
    return [outcomes[item.token] for item in items]


def prepared(side: Side, item: Finished, outcomes: dict[str, ReportOutcome]) -> bool:
    try:
        side.backend.prepare(item, side.beside.time(), make_token())
    except LeaseLost:
        outcomes[item.token] = Lost()
        return False
    return True


async def test_a_result_is_recorded_as_it_was_given(side: Side) -> None:
    await side.a_run()
    run = await side.claim_one()
    evidence = Evidence(execution_trace={"total_ms": 3.5}, output={"lines": ["ä"]})

    returned = Returned(encode_value({"n": [1, 2.5, "ä"]}))
    [outcome] = await ended(side, Finished(run, token_of(run), returned, evidence))

    after = await reload(side.storage, run)
    last = (await history(side.storage, run))[-1]
    assert isinstance(outcome, Recorded)
    assert (outcome.event, outcome.claimable_at) == (EventType.SUCCEEDED, None)
    assert (after.status, after.result) == (Status.SUCCEEDED, {"n": [1, 2.5, "ä"]})
    assert isinstance(last, RunSucceeded)
    assert (last.actor, last.attempt) == (Actor(WORKER, WORKER_ID), 1)
    assert (last.execution_trace, last.output) == ({"total_ms": 3.5}, {"lines": ["ä"]})


async def test_a_failure_is_retried_when_its_worker_asks_for_it(side: Side) -> None:
    await side.a_run(policy=AT_ONCE)
    run = await side.claim_one()

    [outcome] = await ended(side, finished(run, Raised(BOOM, timedelta(hours=1))))

    after = await reload(side.storage, run)
    last = (await history(side.storage, run))[-1]
    assert isinstance(last, RunRetryScheduled)
    assert isinstance(outcome, Recorded)
    assert outcome.claimable_at == after.claimable_at == last.retry_at
    assert last.retry_at - last.occurred_at == timedelta(hours=1)
    assert last.failure == BOOM


async def test_a_spent_budget_makes_a_dead_letter_with_its_reason(side: Side) -> None:
    await side.a_run(policy=a_policy(max_attempts=2, backoff=Backoff(initial=timedelta(0))))
    outcomes = []
    for _ in range(2):
        outcomes += await ended(side, finished(await side.claim_one(), Raised(BOOM)))

    assert [it.event for it in outcomes if isinstance(it, Recorded)] == [
        EventType.RETRY_SCHEDULED,
        EventType.DEAD_LETTERED,
    ]
    assert isinstance(outcomes[1], Recorded)
    assert outcomes[1].reason == "exhausted"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (GaveBack(delay=timedelta(hours=2)), Status.RELEASED),
        (GaveBack(awaiting=Awaiting(kind=AwaitingKind.SIGNAL, key="paid")), Status.WAITING),
        (HandedOver(), Status.RELEASED),
        (Stopped(), Status.RELEASED),
    ],
)
async def test_a_run_can_be_given_back(side: Side, ending: Ending, status: Status) -> None:
    await side.a_run()
    run = await side.claim_one()

    [outcome] = await ended(side, finished(run, ending))

    after = await reload(side.storage, run)
    assert isinstance(outcome, Recorded)
    assert (after.status, after.lease) == (status, None)
    assert outcome.claimable_at == after.claimable_at


async def test_who_stops_because_of_a_cancellation_ends_the_run(side: Side) -> None:
    await side.a_run()
    run = await side.claim_one()
    [asked] = await stored(side.storage, step(run, decide_cancel(run, OPERATOR, now())))
    assert asked.status is Status.CANCELLATION_REQUESTED

    [outcome] = await ended(side, finished(run, Stopped()))

    assert isinstance(outcome, Recorded)
    assert (await reload(side.storage, run)).status is Status.CANCELLED


async def test_endings_travel_with_a_claim(side: Side) -> None:
    for _ in range(3):
        await side.a_run()
    first = (await side.claim(2)).runs
    items = [finished(run) for run in first]
    for item in items:
        side.backend.prepare(item, side.beside.time(), make_token())

    claimed = await side.claim(2, items)

    assert [type(outcome) for outcome in claimed.outcomes] == [Recorded, Recorded]
    assert len(claimed.runs) == 1
    assert {run.id for run in claimed.runs}.isdisjoint(run.id for run in first)


async def test_one_ending_that_cannot_be_recorded_does_not_keep_the_others(side: Side) -> None:
    for _ in range(3):
        await side.a_run()
    runs = (await side.claim(3)).runs
    await stored(side.storage, step(runs[0], decide_cancel(runs[0], OPERATOR, now())))
    gone = Finished(replace(runs[1], id=run_id(99)), make_token(), Stopped())

    outcomes = await ended(side, finished(runs[0], Stopped()), gone, finished(runs[2]))

    assert [type(outcome) for outcome in outcomes] == [Recorded, Lost, Recorded]
    after = [(await reload(side.storage, run)).status for run in runs]
    assert after == [Status.CANCELLED, Status.RUNNING, Status.SUCCEEDED]


async def test_a_lease_that_maintenance_took_is_lost(side: Side) -> None:
    await side.a_run(policy=AT_ONCE)
    first = await side.claim_one(lease_ttl=timedelta(milliseconds=1))
    assert first.lease is not None
    await wait_until(side.storage, first.lease.expires_at)
    await side.beside.tick(grace=0)
    second = await side.claim_one()
    assert second.id == first.id

    [outcome] = await ended(side, finished(first, Returned(encode_value("late"))))

    after = await reload(side.storage, second)
    assert isinstance(outcome, Lost)
    assert (after.status, after.lease and after.lease.token) == (Status.RUNNING, token_of(second))


async def test_a_claim_takes_only_known_tasks_and_queues(side: Side) -> None:
    await stored(side.storage, new_run(queue="mail"), new_run(task="other"), new_run())

    nothing = await side.claim(5, tasks=("unknown",))
    mail = await side.claim(5, queues=("mail",))
    rest = await side.claim(5)

    assert nothing.runs == ()
    assert [run.queue for run in mail.runs] == ["mail"]
    assert [run.task for run in rest.runs] == [TASK]


async def test_a_claim_by_name_takes_that_run(side: Side) -> None:
    runs = [await side.a_run() for _ in range(3)]

    claimed = await side.claim(3, run_ids=(runs[1].id,))

    assert [run.id for run in claimed.runs] == [runs[1].id]
    assert claimed.runs[0].lease is not None
    assert claimed.runs[0].lease.attempt == 1


async def test_a_claim_tells_when_the_next_run_is_due(side: Side) -> None:
    later = await side.a_run(run_at=now() + timedelta(hours=1))

    claimed = await side.claim()

    assert claimed.runs == ()
    assert claimed.next_claimable_at == later.run_at
