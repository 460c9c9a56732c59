"""Why a run does not run, or how it ended: every reason, from facts that others gather.

A reason is told if it holds at this moment. Of a run that is not due yet, full limits and busy
workers are not told: whoever is there now may be gone by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain

from perdure.core.explain.ended import ended, last, leased, lost
from perdure.core.explain.gates import (
    counted,
    holder,
    lost_by_holders,
    open_gate,
    paused_queue,
    shut_limits,
)
from perdure.core.explain.inputs import Facts, SeenWorker
from perdure.core.explain.origin import origin_of
from perdure.core.explain.reason import Code, Holder, Reason, Why, at, because, blamed, named, spent
from perdure.core.explain.wait_cycles import describe_cycle
from perdure.core.explain.workers import missing_workers
from perdure.core.run import events as e
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run

__all__ = [
    "Code",
    "Facts",
    "Holder",
    "Reason",
    "SeenWorker",
    "Why",
    "explain",
    "explain_unreadable",
]

NOTICEABLE = timedelta(seconds=1)
"""Clocks that differ by less explain nothing."""


def explain(facts: Facts) -> Why:
    """Every reason, the weightiest first."""
    run = facts.run
    return Why(run.id, run.status, facts.now, tuple(_reasons(facts)), origin_of(run))


def explain_unreadable(run_id: str, now: datetime, problem: str) -> Why:
    """All there is to say about a run that this code cannot read."""
    return Why(run_id, None, now, (_unreadable(problem),))


def _reasons(facts: Facts) -> Iterator[Reason]:
    run = facts.run
    if run.is_terminal:
        return chain([ended(facts)], lost(facts))
    if run.lease is not None:
        own = leased(facts, run.lease)
    elif run.dispatch_expires_at is not None:
        own = chain([_reserved(run.dispatch_expires_at, facts.now)], paused_queue(facts))
    else:
        own = _unclaimed(facts)
    return chain(_cycle(facts), own, _expires(facts), lost(facts), _clocks(facts))


def _cycle(facts: Facts) -> Iterator[Reason]:
    if facts.cycle is not None:
        words = f"Runs wait for each other: {describe_cycle(facts.cycle)}."
        holders = tuple(holder(run) for run in facts.cycle.runs)
        yield Reason(code=Code.WAIT_CYCLE, sentence=words, holders=holders)


def _unclaimed(facts: Facts) -> Iterator[Reason]:
    held = [
        *_own_gate(facts),
        *paused_queue(facts),
        *shut_limits(facts),
        *open_gate(facts),
        *missing_workers(facts),
    ]
    yield from held
    if facts.run.is_suspect and facts.is_due:
        yield _suspect(facts.run)
    elif all(reason.code is Code.WORKERS_FULL for reason in held):
        yield from _turn(facts, is_next=not held)
    yield from lost_by_holders(facts)


def _own_gate(facts: Facts) -> Iterator[Reason]:
    """What the run itself waits for."""
    run = facts.run
    if facts.is_put_aside:
        yield _unreadable("some code could not; start newer code, which lets it in")
    if run.status is Status.PAUSED:
        yield _held(facts)
    elif run.status is Status.WAITING and not facts.is_due:
        yield _waiting(run)
    elif not facts.is_due:
        yield _later(run)


def _held(facts: Facts) -> Reason:
    event = last(facts, e.RunPaused)
    words = f"since {at(event.occurred_at)}{because(event.reason)}"
    return Reason(
        code=Code.HELD,
        sentence=f"It is held by {named(event.actor)} {words}",
        who=event.actor,
        since=event.occurred_at,
        reason=event.reason,
    )


def _waiting(run: Run) -> Reason:
    awaiting = run.awaiting
    assert awaiting is not None
    deadline = "." if run.run_at is None else f", until {at(run.run_at)} at the latest."
    return Reason(
        code=Code.WAITING,
        sentence=f"It waits for {awaiting.kind} {awaiting.key!r}{deadline}",
        key=awaiting.key,
        reason=awaiting.kind,
        since=run.updated_at,
        opens_at=run.run_at,
    )


def _later(run: Run) -> Reason:
    due = run.claimable_at
    assert due is not None
    if run.status is Status.RETRYING and run.failure is not None:
        words = f"It failed with {spent(run)}; the next attempt is due at {at(due)}"
        sentence, code = words + blamed(run.failure), Code.RETRYING
    elif run.status is Status.RELEASED and run.failure is not None:
        words = f"A worker's code could not execute it; other workers may take it at {at(due)}"
        sentence, code = words + blamed(run.failure), Code.NOT_SERVED
    elif run.status is Status.RELEASED:
        words = f"Its handler gave it back until {at(due)}"
        sentence, code = words + because(run.reason), Code.RELEASED
    else:
        sentence, code = f"It is due at {at(due)}.", Code.SCHEDULED
    failure = run.failure if code in (Code.RETRYING, Code.NOT_SERVED) else None
    return Reason(code=code, sentence=sentence, opens_at=due, since=run.updated_at, failure=failure)


def _reserved(until: datetime, now: datetime) -> Reason:
    if until > now:
        words = f"It is reserved for a push until {at(until)}; only who knows it by name may claim."
        return Reason(code=Code.RESERVED, sentence=words, opens_at=until)
    words = f"Nobody claimed it in the time it was reserved, until {at(until)}; maintenance "
    sentence = words + "gives it back to the queue."
    return Reason(code=Code.RESERVATION_LAPSED, sentence=sentence, since=until)


def _unreadable(problem: str) -> Reason:
    sentence = f"It has been put aside because it cannot be read{because(problem)}"
    return Reason(code=Code.UNREADABLE, sentence=sentence, reason=problem)


def _turn(facts: Facts, *, is_next: bool) -> Iterator[Reason]:
    """Who comes first; nothing else holds it, except perhaps that all hands are full."""
    queue, ahead = facts.run.queue, facts.ahead
    if ahead and facts.is_fair:
        words = f"{counted(ahead, 'other run is', 'other runs are')} due in queue {queue}, where"
        sentence = f"{words} keys take turns."
        key = facts.run.concurrency_key
        yield Reason(code=Code.FAIR_TURN, sentence=sentence, queue=queue, count=ahead, key=key)
    elif ahead:
        words = counted(ahead, "due run comes", "due runs come")
        sentence = f"{words} before it in queue {queue}."
        yield Reason(code=Code.BEHIND, sentence=sentence, queue=queue, count=ahead)
    elif is_next:
        sentence = f"Nothing holds it: the next claim from queue {queue} may take it."
        yield Reason(code=Code.NEXT, sentence=sentence, queue=queue)


def _suspect(run: Run) -> Reason:
    words = f"{counted(run.deaths, 'worker', 'workers')} in a row died while they executed it"
    sentence = f"It is executed alone, because {words}."
    return Reason(code=Code.SUSPECT, sentence=sentence, count=run.deaths, queue=run.queue)


def _expires(facts: Facts) -> Iterator[Reason]:
    """Its time to live, which is no gate; but nobody wants to miss it."""
    run = facts.run
    if not run.may_expire or run.expires_at is None:
        return
    words = f"If no attempt has begun by {at(run.expires_at)}, it expires."
    if run.has_expired(facts.now):
        words = f"Its time to live passed at {at(run.expires_at)}; whoever looks next ends it."
    yield Reason(code=Code.EXPIRES, sentence=words, ends_at=run.expires_at)


def _clocks(facts: Facts) -> Iterator[Reason]:
    difference = facts.clock_ahead
    if abs(difference) < NOTICEABLE:
        return
    side = "ahead of" if difference > timedelta(0) else "behind"
    seconds = abs(difference).total_seconds()
    yield Reason(
        code=Code.CLOCK_DIFFERS,
        sentence=f"This machine's clock is {seconds:.1f} s {side} the storage's, which decides.",
    )
