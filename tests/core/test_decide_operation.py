"""What operators, schedules and dispatchers decide about a run they do not hold."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import (
    LEASE,
    OPERATOR,
    SCHEDULE,
    T0,
    a_run,
    after,
    awaiting,
    delivery_requested,
    lease_claimed,
    lease_returned,
    parked,
    released,
    then,
)
from perdure.core.decide import (
    decide_cancel,
    decide_delivery,
    decide_dispatch,
    decide_pause,
    decide_reschedule,
    decide_resume,
    decide_skip,
    decide_wake,
)
from perdure.core.run import events as e
from perdure.core.run.lifecycle import LEASED, TERMINAL, Status
from perdure.core.run.run import SYSTEM
from perdure.errors import InvalidInput, NotAllowed

FREE = (Status.QUEUED, Status.SCHEDULED, Status.RETRYING, Status.RELEASED)
EARLY = T0 - timedelta(hours=1)


@pytest.mark.parametrize("status", [*FREE, Status.WAITING, Status.PAUSED])
def test_a_run_that_nobody_holds_is_cancelled_at_once(status: Status) -> None:
    run = then(a_run(status), *decide_cancel(a_run(status), OPERATOR, after(5), "wrong"))

    assert (run.status, run.reason, run.finished_at) == (Status.CANCELLED, "wrong", after(5))


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.RUNNING])
def test_the_owner_of_a_run_is_asked_to_stop(status: Status) -> None:
    run = then(a_run(status), *decide_cancel(a_run(status), OPERATOR, after(5), "wrong"))

    assert run.status is Status.CANCELLATION_REQUESTED
    assert run.cancellation is not None
    assert (run.cancellation.actor, run.cancellation.reason) == (OPERATOR, "wrong")


@pytest.mark.parametrize("status", [Status.CANCELLATION_REQUESTED, Status.CANCELLED])
def test_asking_for_a_cancellation_twice_changes_nothing(status: Status) -> None:
    assert decide_cancel(a_run(status), OPERATOR, after(5)) == []


@pytest.mark.parametrize("status", sorted(TERMINAL - {Status.CANCELLED}))
def test_a_run_that_has_ended_cannot_be_cancelled(status: Status) -> None:
    with pytest.raises(NotAllowed, match="it has ended; rerun it to make a new run"):
        decide_cancel(a_run(status), OPERATOR, after(5))


@pytest.mark.parametrize("status", FREE)
def test_a_free_run_is_paused_and_resumed(status: Status) -> None:
    run = a_run(status)

    held = then(run, *decide_pause(run, OPERATOR, after(1), "holiday"))
    freed = then(held, *decide_resume(held, OPERATOR, after(2)))

    assert (held.status, held.claimable_at) == (Status.PAUSED, None)
    assert freed.status in (Status.QUEUED, Status.SCHEDULED)
    assert freed.run_at == run.run_at


def test_pausing_twice_changes_nothing() -> None:
    assert decide_pause(a_run(Status.PAUSED), OPERATOR, T0) == []


def test_only_paused_runs_are_resumed() -> None:
    for status in set(Status) - {Status.PAUSED}:
        with pytest.raises(NotAllowed, match="only paused runs are resumed"):
            decide_resume(a_run(status), OPERATOR, T0)


BUSY = {
    **dict.fromkeys(LEASED, "a worker holds it"),
    **dict.fromkeys(TERMINAL, "it has ended"),
    Status.WAITING: "it waits for something else than time",
}


@pytest.mark.parametrize("status", sorted(BUSY))
def test_a_busy_run_is_neither_paused_nor_rescheduled(status: Status) -> None:
    with pytest.raises(NotAllowed, match=BUSY[status]):
        decide_pause(a_run(status), OPERATOR, T0)
    with pytest.raises(NotAllowed, match=BUSY[status]):
        decide_reschedule(a_run(status), OPERATOR, T0, priority=1)


@pytest.mark.parametrize("status", [*FREE, Status.PAUSED])
def test_a_free_or_paused_run_gets_another_time_priority_and_queue(status: Status) -> None:
    changes: dict[str, Any] = {"run_at": after(9), "priority": 4, "queue": "slow"}

    [event] = decide_reschedule(a_run(status), OPERATOR, T0, reason="calm", **changes)
    run = then(a_run(status), event)

    assert {name: getattr(run, name) for name in changes} == changes
    assert run.status is (status if status is Status.PAUSED else Status.SCHEDULED)


NAIVE = datetime(2026, 3, 1)  # noqa: DTZ001 - the naive one is the point


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("run_at", {}),
        ("run_at", {"run_at": NAIVE}),
        ("priority", {"priority": 11}),
        ("priority", {"priority": -1}),
        ("priority", {"priority": 5.0}),
        ("priority", {"priority": True}),
        ("queue", {"queue": ""}),
        ("queue", {"queue": "a\x00b"}),
    ],
)
def test_a_bad_change_is_refused_by_the_name_of_its_field(field: str, changes: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        decide_reschedule(a_run(), OPERATOR, T0, **changes)

    assert caught.value.field == field


@pytest.mark.parametrize("status", [Status.QUEUED, Status.SCHEDULED])
def test_an_occurrence_that_has_not_begun_is_skipped(status: Status) -> None:
    run = then(a_run(status), *decide_skip(a_run(status), SCHEDULE, T0, "overlap"))

    assert (run.status, run.reason) == (Status.SKIPPED, "overlap")


def test_a_run_that_is_not_queued_or_scheduled_is_not_skipped() -> None:
    for status in set(Status) - {Status.QUEUED, Status.SCHEDULED}:
        with pytest.raises(NotAllowed, match="have not begun"):
            decide_skip(a_run(status), SCHEDULE, T0, "overlap")


def test_a_run_that_has_begun_is_not_skipped_even_if_queued() -> None:
    run = then(a_run(Status.RUNNING), released(resume_at=T0), lease_claimed(), lease_returned())
    assert run.status is Status.QUEUED

    with pytest.raises(NotAllowed, match="have not begun"):
        decide_skip(run, SCHEDULE, T0, "overlap")


@pytest.mark.parametrize("status", FREE)
def test_a_due_run_is_delivered_with_or_without_a_reservation(status: Status) -> None:
    run = a_run(status)

    plain = then(run, *decide_delivery(run, SYSTEM, after(600)))
    pushed = then(run, *decide_delivery(run, SYSTEM, after(600), dispatch_expires_at=after(660)))

    assert (plain.status, plain.run_at, plain.dispatched_at) == (Status.QUEUED, after(600), None)
    assert (pushed.dispatched_at, pushed.dispatch_expires_at) == (after(600), after(660))


def test_a_dispatch_reserves_a_due_run_for_a_time() -> None:
    reserved = then(a_run(), *decide_dispatch(a_run(), after(5), LEASE))

    assert (reserved.dispatched_at, reserved.dispatch_expires_at) == (after(5), after(65))
    assert reserved.holds_room


def test_a_dispatch_that_comes_too_late_says_so() -> None:
    run = a_run(expires_at=after(9))

    assert then(run, *decide_dispatch(run, after(9), LEASE)).status is Status.EXPIRED


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.QUEUED])
def test_what_is_not_due_is_not_delivered(status: Status) -> None:
    with pytest.raises(NotAllowed, match="it is not due"):
        decide_delivery(a_run(status), SYSTEM, after(1))


def test_a_wait_past_its_deadline_is_delivered() -> None:
    run = then(a_run(Status.RUNNING), parked(awaiting=awaiting(deadline=after(30))))

    delivered = then(run, *decide_delivery(run, SYSTEM, after(30)))

    assert (delivered.status, delivered.awaiting) == (Status.QUEUED, None)


def test_a_waiting_run_wakes_through_the_queue() -> None:
    run = a_run(Status.WAITING)

    awake = then(run, *decide_wake(run, OPERATOR, after(5)))

    assert (awake.status, awake.run_at, awake.awaiting) == (Status.QUEUED, after(5), None)


@pytest.mark.parametrize("status", sorted(set(Status) - TERMINAL - {Status.WAITING}))
def test_a_run_that_does_not_wait_any_more_is_left_alone(status: Status) -> None:
    assert decide_wake(a_run(status), OPERATOR, after(5)) == []


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_ended_run_is_not_woken(status: Status) -> None:
    with pytest.raises(NotAllowed, match="it has ended"):
        decide_wake(a_run(status), OPERATOR, after(5))


def test_a_clock_that_steps_back_cannot_reorder_a_history() -> None:
    queued, held = a_run(), a_run(Status.PAUSED)
    for events in (
        decide_cancel(queued, OPERATOR, EARLY),
        decide_pause(queued, OPERATOR, EARLY),
        decide_resume(held, OPERATOR, EARLY),
        decide_reschedule(queued, OPERATOR, EARLY, priority=1),
        decide_skip(queued, SCHEDULE, EARLY, "overlap"),
        decide_delivery(queued, SYSTEM, EARLY),
        decide_wake(a_run(Status.WAITING), OPERATOR, EARLY),
    ):
        assert [event.occurred_at for event in events] == [T0]


def test_a_delivery_targets_the_run_where_it_is() -> None:
    run = a_run(queue="slow", environment="prod")

    [event] = decide_delivery(run, SYSTEM, T0)

    assert event == delivery_requested(environment="prod", delivery={"queue": "slow"})


def test_a_request_to_stop_carries_the_expiry_of_the_lease() -> None:
    [event] = decide_cancel(a_run(Status.RUNNING), OPERATOR, after(5))

    assert isinstance(event, e.RunCancellationRequested)
    assert event.lease_expires_at == after(60)


def test_a_delivery_by_a_clock_that_stepped_back_is_due_at_the_last_event() -> None:
    [event] = decide_wake(a_run(Status.WAITING), OPERATOR, EARLY)

    assert isinstance(event, e.RunDeliveryRequested)
    assert event.delivery.available_at == T0
