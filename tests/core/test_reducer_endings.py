"""How attempts and runs end, and what operators do to them; one effect at a time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from builders import (
    BUILDERS,
    OPERATOR,
    RESULT,
    T0,
    WORKER,
    Builder,
    a_failure,
    a_run,
    after,
    awaiting,
    cancellation_requested,
    cancelled,
    dead_lettered,
    delivery_requested,
    effect,
    expired,
    failed,
    lease_claimed,
    parked,
    paused,
    released,
    rescheduled,
    resumed,
    retry_scheduled,
    skipped,
    started,
    succeeded,
    then,
)
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import TERMINAL, EventType, Status
from perdure.core.run.reducer import apply
from perdure.core.run.run import Cancellation, Counters, Run, Streak
from perdure.errors import InvariantViolation

BOOM = a_failure("boom")
ENDED = {"lease": None, "finished_at": after(5)}
UNRESERVED = {"dispatched_at": None, "dispatch_expires_at": None}


def reserved(run: Run) -> Run:
    """No lawful history leaves a reservation or failure here; what clears them clears these."""
    return replace(run, dispatched_at=T0, dispatch_expires_at=after(9), failure=a_failure("old"))


def reserved_by_delivery(**fields: Any) -> Run:
    wish = {"dispatch_expires_at": after(60)}
    return then(a_run(**fields), delivery_requested(delivery=wish))


def test_success_ends_the_run_with_its_result_and_counts_nothing() -> None:
    changes = effect(reserved(a_run(Status.RUNNING)), succeeded(at=after(5)))

    expected = {"status": Status.SUCCEEDED, "result_json": RESULT, "failure": None}
    assert changes == expected | ENDED | UNRESERVED


def test_success_may_have_no_result_at_all() -> None:
    run = then(a_run(Status.RUNNING), succeeded(result_json=UNSET))

    assert (run.result_json, run.result) == (UNSET, None)


def test_a_result_is_read_back_as_a_value() -> None:
    assert a_run(Status.SUCCEEDED).result == {"sent": True}


def test_a_failure_ends_the_run_and_is_kept() -> None:
    changes = effect(reserved(a_run(Status.RUNNING)), failed(at=after(5), failure=BOOM))

    expected = {"status": Status.FAILED, "failure": BOOM, "streak": Streak(BOOM.fingerprint, 1)}
    counters = {"counters": Counters(claims=1, attempts=1, failures=1)}
    assert changes == expected | counters | ENDED | UNRESERVED


def test_a_dead_letter_ends_the_run_and_keeps_its_reason() -> None:
    changes = effect(reserved(a_run(Status.RUNNING)), dead_lettered(at=after(5), reason="poison"))

    expected = {"status": Status.DEAD_LETTERED, "failure": BOOM, "reason": "poison"}
    streak = {"streak": Streak(BOOM.fingerprint, 1)}
    counters = {"counters": Counters(claims=1, attempts=1, failures=1)}
    assert changes == expected | streak | counters | ENDED | UNRESERVED


@pytest.mark.parametrize("build", [failed, dead_lettered])
@pytest.mark.parametrize("kind", [FailureKind.SYSTEM, FailureKind.REJECTED])
def test_a_claim_that_cannot_become_an_attempt_may_fail(build: Builder, kind: FailureKind) -> None:
    event = build(attempt=None, failure=a_failure(kind=kind))

    run = apply(a_run(Status.CLAIMED), event)

    assert run.counters == Counters(claims=1, failures=1)
    assert run.is_terminal


@pytest.mark.parametrize("kind", [FailureKind.ERROR, FailureKind.TIMEOUT, FailureKind.CRASH])
def test_a_claim_cannot_fail_as_an_attempt_does(kind: FailureKind) -> None:
    with pytest.raises(InvariantViolation, match="`system` or `rejected`"):
        apply(a_run(Status.CLAIMED), failed(attempt=None, failure=a_failure(kind=kind)))


def test_a_retry_waits_for_its_time_and_counts_failure_and_retry() -> None:
    changes = effect(reserved(a_run(Status.RUNNING)), retry_scheduled(at=after(5)))

    assert changes == UNRESERVED | {
        "status": Status.RETRYING,
        "counters": Counters(claims=1, attempts=1, failures=1, retries=1),
        "failure": BOOM,
        "streak": Streak(BOOM.fingerprint, 1),
        "run_at": after(35),
        "lease": None,
    }


def test_a_release_waits_for_its_time_and_counts_no_failure() -> None:
    changes = effect(a_run(Status.RUNNING), released(at=after(5)))

    assert changes == {
        "status": Status.RELEASED,
        "counters": Counters(claims=1, attempts=1, releases=1),
        "run_at": after(35),
        "lease": None,
    }


@pytest.mark.parametrize("deadline", [None, after(99)])
def test_a_release_that_awaits_something_waits_until_its_deadline(deadline: Any) -> None:
    wait = awaiting(deadline=deadline)
    before = a_run(Status.RUNNING, run_at=T0)

    run = apply(before, released(awaiting=wait))

    assert (run.status, run.run_at, run.awaiting) == (Status.WAITING, deadline, wait)
    assert (run.counters.releases, run.lease) == (1, None)


def test_a_release_clears_the_reservation() -> None:
    run = apply(reserved(a_run(Status.RUNNING)), released())

    assert (run.dispatched_at, run.dispatch_expires_at) == (None, None)


def test_a_release_that_says_nothing_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="neither when nor what"):
        apply(a_run(Status.RUNNING), released(resume_at=None))


def test_equal_failures_in_a_row_make_a_streak_and_another_one_begins_anew() -> None:
    run, counts = a_run(), []
    for attempt, message in enumerate(["disk 1", "disk 2", "net", "net"], start=1):
        ending = retry_scheduled(attempt=attempt, failure=a_failure(message), retry_at=T0)
        run = then(run, lease_claimed(), started(attempt=attempt), ending)
        assert run.streak is not None
        counts.append(run.streak.count)

    assert counts == [1, 2, 1, 2]


@pytest.mark.parametrize("build", [succeeded, failed, dead_lettered, retry_scheduled, released])
@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLATION_REQUESTED])
def test_every_ending_needs_the_number_of_the_attempt(build: Builder, status: Status) -> None:
    for attempt in (None, 0, 2):
        with pytest.raises(InvariantViolation, match="the number of the lease's attempt"):
            apply(a_run(status), build(attempt=attempt))

    assert apply(a_run(status), build(attempt=1)).lease is None


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.RUNNING])
def test_a_cancellation_request_keeps_the_lease_and_who_asked(status: Status) -> None:
    changes = effect(a_run(status), cancellation_requested(at=after(5), reason="wrong"))

    asked = Cancellation(at=after(5), actor=OPERATOR, reason="wrong")
    assert changes == {"status": Status.CANCELLATION_REQUESTED, "cancellation": asked}


def test_a_running_run_is_never_cancelled_straight_away() -> None:
    for status in (Status.CLAIMED, Status.RUNNING):
        with pytest.raises(InvariantViolation, match=r"run\.cancelled cannot happen"):
            apply(a_run(status), cancelled())


def test_a_cancelled_run_has_neither_lease_nor_failure_nor_wait() -> None:
    run = replace(reserved(a_run(Status.WAITING)), status=Status.CANCELLATION_REQUESTED)

    changes = effect(run, cancelled(at=after(5), reason="wrong"))

    assert changes == UNRESERVED | {
        "status": Status.CANCELLED,
        "finished_at": after(5),
        "failure": None,
        "awaiting": None,
        "reason": "wrong",
        "cancellation": Cancellation(at=after(5), actor=OPERATOR, reason="wrong"),
    }


def test_a_cancelled_run_remembers_who_asked_first_and_why() -> None:
    asked = then(a_run(Status.RUNNING), cancellation_requested(at=after(1), reason="wrong"))

    run = then(asked, cancelled(at=after(2), actor=WORKER))

    assert run.cancellation == Cancellation(at=after(1), actor=OPERATOR, reason="wrong")
    assert (run.reason, run.lease) == ("wrong", None)


def test_expiry_ends_a_run_that_never_began() -> None:
    run = reserved_by_delivery(expires_at=after(5))

    assert effect(run, expired(at=after(5))) == UNRESERVED | {
        "status": Status.EXPIRED,
        "finished_at": after(5),
    }


def test_a_skip_ends_a_run_that_never_began_and_keeps_the_reason() -> None:
    changes = effect(reserved_by_delivery(), skipped(at=after(5), reason="overlap"))

    ended = {"status": Status.SKIPPED, "finished_at": after(5), "reason": "overlap"}
    assert changes == UNRESERVED | ended


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.RETRYING, Status.RELEASED])
def test_a_pause_holds_the_run_as_it_is(status: Status) -> None:
    assert effect(a_run(status), paused()) == {"status": Status.PAUSED}


def test_a_pause_clears_the_reservation() -> None:
    changes = effect(reserved_by_delivery(), paused())

    assert changes == UNRESERVED | {"status": Status.PAUSED}


@pytest.mark.parametrize(
    ("run_at", "status"),
    [(None, Status.QUEUED), (after(5), Status.QUEUED), (after(6), Status.SCHEDULED)],
)
def test_a_resumed_run_is_queued_or_scheduled_by_its_time(run_at: Any, status: Status) -> None:
    run = a_run(Status.PAUSED, run_at=run_at)

    assert effect(run, resumed(at=after(5))) == {"status": status}


@pytest.mark.parametrize(
    "status", [Status.QUEUED, Status.SCHEDULED, Status.RETRYING, Status.RELEASED]
)
def test_another_time_decides_the_status_anew(status: Status) -> None:
    run = a_run(status)

    later = apply(run, rescheduled(at=after(5), run_at=after(99)))
    now = apply(run, rescheduled(at=after(5), run_at=after(5)))

    assert (later.status, later.run_at) == (Status.SCHEDULED, after(99))
    assert (now.status, now.run_at) == (Status.QUEUED, after(5))


@pytest.mark.parametrize(
    "status", [Status.QUEUED, Status.SCHEDULED, Status.RETRYING, Status.RELEASED, Status.PAUSED]
)
def test_another_priority_or_queue_alone_leaves_the_status(status: Status) -> None:
    changes = effect(a_run(status), rescheduled(priority=5, queue="slow"))

    assert changes == {"priority": 5, "queue": "slow"}


def test_a_paused_run_gets_its_new_time_and_stays_paused() -> None:
    assert effect(a_run(Status.PAUSED), rescheduled(run_at=after(9))) == {"run_at": after(9)}


def test_rescheduling_clears_the_reservation() -> None:
    changes = effect(reserved_by_delivery(), rescheduled(priority=1))

    assert changes == UNRESERVED | {"priority": 1}


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("event", EventType)
def test_nothing_follows_a_terminal_event(status: Status, event: EventType) -> None:
    run = a_run(status)

    with pytest.raises(InvariantViolation, match="has ended"):
        apply(run, BUILDERS[event](at=after(9999)))


def test_finish_result_and_reason_are_set_only_by_terminal_events() -> None:
    for status in Status:
        run = a_run(status)
        assert (run.finished_at is not None) == run.is_terminal
        assert (run.result_json is not UNSET) == (status is Status.SUCCEEDED)
        assert run.reason is None or run.is_terminal


def test_a_release_while_cancelling_remembers_that_somebody_asked() -> None:
    run = then(a_run(Status.CANCELLATION_REQUESTED), parked())

    assert run.status is Status.WAITING
    assert run.cancellation is not None
