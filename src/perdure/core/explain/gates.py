"""Which gates are shut for a run: a paused queue, limits that are full, rates that are used up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.core.explain.inputs import MOST_COUNTED, Facts
from perdure.core.explain.reason import Code, Holder, Reason, at, because, named
from perdure.core.limits.admission import Gate, LimitScope, needed_gates
from perdure.core.limits.settings import Said
from perdure.core.run.failure import CRASH
from perdure.core.run.run import ActorType, Run

_FULL = {
    LimitScope.QUEUE: Code.QUEUE_FULL,
    LimitScope.TASK: Code.TASK_FULL,
    LimitScope.KEY: Code.KEY_FULL,
    LimitScope.SCHEDULE: Code.SCHEDULE_FULL,
}
_RATE = {
    LimitScope.QUEUE: Code.QUEUE_RATE,
    LimitScope.TASK: Code.TASK_RATE,
    LimitScope.KEY: Code.KEY_RATE,
    LimitScope.SCHEDULE: Code.SCHEDULE_RATE,
}
_FIELD = {
    LimitScope.QUEUE: "queue",
    LimitScope.TASK: "task",
    LimitScope.KEY: "task",
    LimitScope.SCHEDULE: "schedule_id",
}


def paused_queue(facts: Facts) -> Iterator[Reason]:
    """Who paused the queue, and why."""
    limit = facts.limit(Gate(LimitScope.QUEUE, facts.run.queue))
    if limit is None or limit.pause is None:
        return
    pause = limit.pause
    is_signed = limit.unreadable is None
    by = f"was paused by {named(pause.by)} at {at(pause.at)}" if is_signed else "is paused"
    yield Reason(
        code=Code.QUEUE_PAUSED,
        sentence=f"Queue {limit.name} {by}{because(pause.reason)}",
        queue=limit.name,
        who=pause.by if is_signed else None,
        since=pause.at if is_signed else None,
        reason=pause.reason,
    )


def shut_limits(facts: Facts) -> Iterator[Reason]:
    """Every limit without room. Of one that is not due yet, only those that will not change by
    themselves: whoever holds the others now may be gone by then."""
    for gate in needed_gates(facts.run):
        rule = facts.standing.rule(gate)
        lets_nobody_in = rule is not None and rule.max_leases == 0
        if facts.standing.is_full(gate) and (facts.is_due or lets_nobody_in):
            yield _full(facts, gate)
        if facts.is_due and facts.standing.dry_until(gate) is not None:
            yield _dry(facts, gate)


def _full(facts: Facts, gate: Gate) -> Reason:
    rule = facts.standing.rule(gate)
    most = None if rule is None else rule.max_leases
    count = facts.standing.holders.get(gate, 0)
    holders = facts.holders.get(gate, ())
    parked = facts.parked.get(gate)
    said = _said(facts, gate, "concurrency")
    return Reason(
        code=_FULL[gate.scope],
        sentence=f"{_name(gate)} {_so_full(count, most, said)}"
        f"{_held_by(holders, count)}{_shared(parked)}.",
        count=count,
        most=most,
        parked=parked,
        holders=tuple(holder(run) for run in holders),
        **_place(gate),
        **_whose(said),
    )


def _dry(facts: Facts, gate: Gate) -> Reason:
    opens_at = facts.standing.dry_until(gate)
    assert opens_at is not None
    said = _said(facts, gate, "rate")
    rate = "" if said is None else f" of {said.value}"
    return Reason(
        code=_RATE[gate.scope],
        sentence=f"{_name(gate)} has used up its rate{rate}; the next start may be at "
        f"{at(opens_at)}.",
        opens_at=opens_at,
        **_place(gate),
        **_whose(said),
    )


def open_gate(facts: Facts) -> Iterator[Reason]:
    """Parked behind a gate that has room again. Those of a paused queue stay behind it."""
    gate = facts.parked_at
    if gate is None or facts.standing.room(gate, 1) <= 0 or any(paused_queue(facts)):
        return
    yield Reason(
        code=Code.GATE_OPEN,
        sentence=f"{_name(gate)} has room again; maintenance lets the run in, which was parked.",
        **_place(gate),
    )


def lost_by_holders(facts: Facts) -> Iterator[Reason]:
    """Holders that had lost a lease before: their first code may be running beside the second."""
    holders = {run.id: run for runs in facts.holders.values() for run in runs}
    for run in holders.values():
        crashed = run.streak is not None and run.streak.fingerprint == CRASH.fingerprint
        if run.counters.abandons or crashed:
            yield Reason(
                code=Code.LOST_LEASE,
                sentence="User code of a lost lease may still be running: an earlier attempt of "
                f"{run.id}, which holds a place it waits for.",
                run_id=run.id,
            )


def holder(run: Run) -> Holder:
    lease = run.lease
    return Holder(
        run_id=run.id,
        status=run.status,
        worker_id=None if lease is None else lease.worker_id,
        since=run.dispatched_at if lease is None else lease.claimed_at,
        until=run.dispatch_expires_at if lease is None else lease.expires_at,
    )


def _so_full(count: int, most: int | None, said: Said[Any] | None) -> str:
    if count or most:
        return f"is full, with {count} of {most}"
    is_signed = said is not None and said.by.type is ActorType.OPERATOR
    by = f", which {named(said.by)} said at {at(said.at)}" if said and is_signed else ""
    return f"lets nobody through: its limit is 0{by}"


def _held_by(holders: tuple[Run, ...], count: int) -> str:
    if not holders:
        return ""
    more = f" and {count - len(holders)} more" if count > len(holders) else ""
    return f", held by {', '.join(run.id for run in holders)}{more}"


def _shared(parked: int | None) -> str:
    if not parked:
        return ""
    return f"; {counted(parked, 'run waits', 'runs wait')} there"


def counted(count: int, one: str, several: str) -> str:
    more = " or more" if count >= MOST_COUNTED else ""
    return f"{count}{more} {one if count == 1 else several}"


def _name(gate: Gate) -> str:
    if gate.scope is LimitScope.KEY:
        return f"Key {gate.key!r} of task {gate.name}"
    return f"{gate.scope.value.capitalize()} {gate.name}"


def _place(gate: Gate) -> dict[str, Any]:
    field = _FIELD[gate.scope]
    return {field: gate.name} | ({"key": gate.key} if gate.scope is LimitScope.KEY else {})


def _said(facts: Facts, gate: Gate, field: str) -> Said[Any] | None:
    """Of a limit that cannot be read, nobody knows who said it."""
    limit = facts.limit(gate)
    return None if limit is None or limit.unreadable is not None else limit.said(field)


def _whose(said: Said[Any] | None) -> dict[str, Any]:
    return {} if said is None else {"who": said.by, "since": said.at}
