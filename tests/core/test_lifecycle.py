"""Every status with every event: what `lifecycle.ARROWS` says is what the reducer does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from builders import (
    BUILDERS,
    LEASE,
    T0,
    a_failure,
    a_run,
    after,
    awaiting,
    created,
    lease_claimed,
    lease_returned,
    parked,
    released,
    started,
    then,
)
from perdure.core.run.events import EVENT_CLASSES, Event
from perdure.core.run.failure import FailureKind
from perdure.core.run.guards import PREDICATES
from perdure.core.run.lifecycle import (
    ACTIVE,
    ARROWS,
    LEASED,
    MEANING,
    TERMINAL,
    Arrow,
    EventType,
    Guard,
    Status,
)
from perdure.core.run.reducer import apply, create
from perdure.core.run.run import Run
from perdure.errors import InvariantViolation

LATE = after(3600)
FAR = after(7200)
TTL = after(900)

PAIRS = [(status, event) for status in Status for event in EventType]
ALLOWED = [(arrow, target) for arrow in ARROWS.values() for target in arrow.targets]
REFUSED = [pair for pair in PAIRS if pair not in ARROWS]

_BY_TARGET: dict[tuple[EventType, Status], dict[str, Any]] = {
    (EventType.DELIVERY_REQUESTED, Status.SCHEDULED): {"delivery": {"available_at": FAR}},
    (EventType.LEASE_RETURNED, Status.SCHEDULED): {"run_at": FAR},
    (EventType.RELEASED, Status.WAITING): {"awaiting": awaiting(), "resume_at": None},
    (EventType.RESCHEDULED, Status.SCHEDULED): {"run_at": FAR},
    (EventType.RESCHEDULED, Status.QUEUED): {"run_at": LATE},
    (EventType.RESCHEDULED, Status.RETRYING): {"priority": 5},
    (EventType.RESCHEDULED, Status.RELEASED): {"priority": 5},
}
_BY_GUARD: dict[Guard, dict[str, Any]] = {
    Guard.NEVER_BEGAN: {"attempt": None, "failure": a_failure(kind=FailureKind.SYSTEM)},
    Guard.NEXT_ATTEMPT: {"at": T0},
}


def run_for(arrow: Arrow, target: Status) -> Run:
    """A run in the arrow's source status that `event_for` may lead to `target`."""
    if arrow.event is EventType.RESUMED and target is Status.SCHEDULED:
        return a_run(arrow.source, run_at=FAR)
    if arrow.source is Status.WAITING:
        attempt = a_run(Status.RUNNING)
        return then(attempt, parked(awaiting=awaiting(deadline=after(30))))
    return a_run(arrow.source, expires_at=TTL)


def event_for(arrow: Arrow, target: Status, **fields: Any) -> Event:
    """An event that satisfies the arrow's guard, but for `fields`."""
    defaults = {"at": LATE} | _BY_GUARD.get(arrow.guard, {})
    wanted = _BY_TARGET.get((arrow.event, target), {})
    return BUILDERS[arrow.event](**(defaults | wanted | fields))


def pair_name(value: object) -> str:
    if isinstance(value, Arrow):
        return f"{value.source}-{value.event}"
    return str(value)


@pytest.mark.parametrize(("arrow", "target"), ALLOWED, ids=pair_name)
def test_an_allowed_event_leads_to_each_of_its_targets(arrow: Arrow, target: Status) -> None:
    run = apply(run_for(arrow, target), event_for(arrow, target))

    assert run.status is target


@pytest.mark.parametrize(("status", "event"), REFUSED, ids=pair_name)
def test_an_event_without_an_arrow_is_refused_as_a_violation(
    status: Status, event: EventType
) -> None:
    run = a_run(status, expires_at=TTL)

    with pytest.raises(InvariantViolation, match=f"{event} cannot happen: the run is {status}"):
        apply(run, BUILDERS[event](at=LATE))


def test_every_pair_is_either_allowed_or_refused() -> None:
    assert len(PAIRS) == 15 * 18
    assert len(ARROWS) + len(REFUSED) == len(PAIRS)


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_no_arrow_leaves_a_terminal_status(status: Status) -> None:
    assert not [arrow for arrow in ARROWS.values() if arrow.source is status]


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_every_active_status_can_be_left(status: Status) -> None:
    arrows = [arrow for arrow in ARROWS.values() if arrow.source is status]

    assert {target for arrow in arrows for target in arrow.targets} - {status}


def test_every_status_is_terminal_or_active_and_only_active_ones_are_leased() -> None:
    assert not TERMINAL & ACTIVE
    assert frozenset(Status) == TERMINAL | ACTIVE
    assert LEASED < ACTIVE
    assert set(MEANING) == set(Status)


def test_every_event_type_has_its_class_and_its_builder() -> None:
    for event_type, build in BUILDERS.items():
        assert build().type is event_type
        assert type(build()) is EVENT_CLASSES[event_type]
    assert set(BUILDERS) == set(EVENT_CLASSES) == set(EventType)


@pytest.mark.parametrize("event", [t for t in EventType if t is not EventType.CREATED])
def test_only_a_creation_can_come_first(event: EventType) -> None:
    with pytest.raises(InvariantViolation, match="cannot be the first event"):
        create(BUILDERS[event]())


@pytest.mark.parametrize("status", Status)
def test_a_creation_can_come_only_first(status: Status) -> None:
    with pytest.raises(InvariantViolation):
        apply(a_run(status), created(at=LATE))


_EARLY: dict[str, Any] = {"at": T0}
_MISDIRECTED: tuple[dict[str, Any], ...] = (
    {"delivery": {"queue": "other"}},
    {"delivery": {"environment": "other"}},
    {"delivery": {"run_id": "run_other"}},
)
_BREAKS: dict[Guard, tuple[dict[str, Any], ...]] = {
    Guard.DELIVERY_FITS: _MISDIRECTED,
    Guard.DELIVERY_FITS_WHEN_DUE: (*_MISDIRECTED, _EARLY),
    Guard.DELIVERY_FITS_LEASE_EXPIRED: (*_MISDIRECTED, _EARLY),
    Guard.DUE: (_EARLY,),
    Guard.LEASE_EXPIRED: (_EARLY,),
    Guard.HOLDER: ({"token": "stale"}, {"worker_id": "worker-2"}),
    Guard.NEXT_ATTEMPT: ({"attempt": 0}, {"attempt": 2}, {"at": T0 + LEASE}),
    Guard.COMPLETES: ({"attempt": 2}, {"attempt": None}),
    Guard.NEVER_BEGAN: ({"attempt": 1}, {"failure": a_failure()}),
    Guard.TTL_PASSED: ({"at": after(899)},),
}


def violations(arrow: Arrow) -> Iterator[tuple[Run, Event]]:
    """Runs and events of this arrow whose guard does not hold, one for each way to break it."""
    target = arrow.targets[0]
    for fields in _BREAKS.get(arrow.guard, ()):
        yield run_for(arrow, target), event_for(arrow, target, **fields)
    for run in unfit_runs(arrow):
        yield run, event_for(arrow, target)


def unfit_runs(arrow: Arrow) -> Iterator[Run]:
    if arrow.guard is Guard.QUEUED_DUE:
        yield a_run(run_at=FAR)
    if arrow.guard is Guard.TTL_PASSED:
        yield a_run(arrow.source)
    if arrow.guard in (Guard.TTL_PASSED, Guard.NO_ATTEMPT):
        yield begun(arrow.source)


def begun(status: Status) -> Run:
    """A run whose time to live has passed, but which has begun an attempt, back in `status`."""
    run = then(a_run(Status.RUNNING, expires_at=after(1)), released(resume_at=T0))
    run = then(run, lease_claimed())
    if status is Status.SCHEDULED:
        return then(run, lease_returned(run_at=FAR))
    run = then(run, lease_returned())
    return run if status is Status.QUEUED else then(run, BUILDERS[EventType.PAUSED]())


BROKEN = [
    pytest.param(run, event, arrow, id=f"{pair_name(arrow)}-{number}")
    for arrow in ARROWS.values()
    for number, (run, event) in enumerate(violations(arrow))
]


@pytest.mark.parametrize(("run", "event", "arrow"), BROKEN)
def test_an_event_that_breaks_its_guard_is_refused(run: Run, event: Event, arrow: Arrow) -> None:
    assert not PREDICATES[arrow.guard](run, event)
    with pytest.raises(InvariantViolation, match="needs: "):
        apply(run, event)


def test_every_guard_but_always_is_broken_by_some_event() -> None:
    broken = {arrow.guard for arrow in ARROWS.values() if list(violations(arrow))}

    assert broken == set(Guard) - {Guard.ALWAYS}


def test_a_claim_asked_to_stop_before_it_started_is_ended_by_cancelled_alone() -> None:
    run = then(a_run(Status.CLAIMED), BUILDERS[EventType.CANCELLATION_REQUESTED]())

    for ending in ("succeeded", "failed", "dead_lettered", "retry_scheduled", "released"):
        for attempt in (None, 1):
            with pytest.raises(InvariantViolation):
                apply(run, BUILDERS[EventType(f"run.{ending}")](attempt=attempt))
    assert then(run, BUILDERS[EventType.CANCELLED]()).status is Status.CANCELLED


def test_a_start_on_a_lease_renewed_without_an_event_is_accepted() -> None:
    run = a_run(Status.CLAIMED)

    assert apply(run, started(at=after(90), lease_expires_at=after(120))).status is Status.RUNNING
