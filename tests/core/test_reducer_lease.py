"""Leases: claimed, renewed, returned, begun; one effect at a time."""

from __future__ import annotations

from datetime import datetime

import pytest
from msgspec.structs import replace

from builders import (
    T0,
    TOKEN,
    WORKER_ID,
    a_run,
    after,
    awaiting,
    cancellation_requested,
    delivery_requested,
    effect,
    lease_claimed,
    lease_heartbeat,
    lease_returned,
    parked,
    retry_scheduled,
    started,
    succeeded,
    then,
)
from perdure.core.run.lifecycle import LEASED, Status
from perdure.core.run.reducer import apply
from perdure.core.run.run import Counters, Lease
from perdure.errors import InvariantViolation


def a_lease(claimed_at: datetime = T0, fence: int = 1, attempt: int | None = None) -> Lease:
    return Lease(
        token=TOKEN,
        fence=fence,
        worker_id=WORKER_ID,
        claimed_at=claimed_at,
        renewed_at=claimed_at,
        expires_at=claimed_at + (after(60) - T0),
        attempt=attempt,
    )


def test_a_claim_sets_the_lease_and_counts() -> None:
    assert effect(a_run(), lease_claimed(at=after(5))) == {
        "status": Status.CLAIMED,
        "counters": Counters(claims=1),
        "lease": a_lease(after(5)),
    }


def test_a_claim_clears_the_reservation() -> None:
    run = then(a_run(), delivery_requested(delivery={"dispatch_expires_at": after(60)}))

    changes = effect(run, lease_claimed())

    assert (changes["dispatched_at"], changes["dispatch_expires_at"]) == (None, None)
    assert changes.keys() == {
        "status", "counters", "lease", "dispatched_at", "dispatch_expires_at",
    }  # fmt: skip


def test_a_claim_after_a_deadline_ends_the_wait() -> None:
    run = then(a_run(Status.RUNNING), parked(awaiting=awaiting(deadline=after(30))))
    with pytest.raises(InvariantViolation, match="is due"):
        apply(run, lease_claimed(at=after(29)))

    changes = effect(run, lease_claimed(at=after(30)))

    assert (changes["status"], changes["awaiting"]) == (Status.CLAIMED, None)


def test_a_wait_without_a_deadline_cannot_be_claimed() -> None:
    with pytest.raises(InvariantViolation, match="is due"):
        apply(a_run(Status.WAITING), lease_claimed(at=after(99999)))


def test_a_queued_run_is_claimed_when_its_time_has_come() -> None:
    run = a_run(run_at=after(10))
    with pytest.raises(InvariantViolation, match="is due"):
        apply(run, lease_claimed(at=after(9)))

    assert apply(run, lease_claimed(at=after(10))).status is Status.CLAIMED


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.RUNNING])
def test_a_live_lease_is_not_claimed_over_but_an_expired_one_is(status: Status) -> None:
    run = a_run(status)
    with pytest.raises(InvariantViolation, match="lease has expired"):
        apply(run, lease_claimed(at=after(59), token="token-2"))

    taken = apply(run, lease_claimed(at=after(60), token="token-2"))

    assert (taken.status, taken.counters.claims, taken.counters.abandons) == (Status.CLAIMED, 2, 0)
    assert taken.lease == replace(a_lease(after(60), fence=2), token="token-2")


def test_the_fence_is_the_number_of_the_claim_and_only_grows() -> None:
    run, fences = a_run(), []
    for _ in range(3):
        run = then(run, lease_claimed())
        assert run.lease is not None
        fences.append(run.lease.fence)
        run = then(run, lease_returned())

    assert fences == [1, 2, 3]


@pytest.mark.parametrize("status", sorted(LEASED))
def test_a_heartbeat_replaces_the_lease_and_changes_nothing_else(status: Status) -> None:
    run = a_run(status)
    assert run.lease is not None

    changes = effect(run, lease_heartbeat(at=after(20)))

    renewed = replace(run.lease, renewed_at=after(20), expires_at=after(80))
    assert changes == {"lease": renewed}


def test_a_heartbeat_of_an_expired_lease_that_nobody_took_is_accepted() -> None:
    run = apply(a_run(Status.RUNNING), lease_heartbeat(at=after(100)))

    assert run.lease is not None
    assert run.lease.expires_at == after(160)


def test_a_return_queues_the_run_and_costs_no_attempt() -> None:
    assert effect(a_run(Status.CLAIMED), lease_returned(reason="shutdown")) == {
        "status": Status.QUEUED,
        "lease": None,
        "counters": Counters(claims=1, returns=1),
    }


def test_a_return_for_later_schedules_the_run() -> None:
    changes = effect(a_run(Status.CLAIMED), lease_returned(run_at=after(5)))

    assert (changes["status"], changes["run_at"]) == (Status.SCHEDULED, after(5))


def test_a_return_without_a_time_keeps_the_time_the_run_was_due() -> None:
    run = then(a_run(Status.RETRYING), lease_claimed(at=after(30)))

    changes = effect(run, lease_returned(at=after(31)))

    assert changes.keys() == {"status", "lease", "counters"}
    assert then(run, lease_returned(at=after(31))).run_at == after(30)


def test_a_start_makes_the_next_attempt() -> None:
    assert effect(a_run(Status.CLAIMED), started(at=after(1))) == {
        "status": Status.RUNNING,
        "counters": Counters(claims=1, attempts=1),
        "lease": a_lease(attempt=1),
        "started_at": after(1),
    }


def test_a_start_clears_the_failure_but_not_the_streak() -> None:
    run = then(a_run(Status.RETRYING), lease_claimed(at=after(30)))
    assert run.failure is not None

    moved = apply(run, started(at=after(30), attempt=2))

    assert (moved.failure, moved.streak) == (None, run.streak)
    assert (moved.counters.attempts, moved.started_at) == (2, after(30))


def test_a_start_takes_the_expiry_it_carries() -> None:
    run = apply(a_run(Status.CLAIMED), started(at=after(70), lease_expires_at=after(100)))

    assert run.lease is not None
    assert run.lease.expires_at == after(100)


def test_the_later_expiry_counts_when_an_event_carries_an_earlier_one() -> None:
    run = apply(a_run(Status.CLAIMED), started(at=after(50), lease_expires_at=after(10)))

    assert run.lease is not None
    assert run.lease.expires_at == after(60)


def test_an_expiry_carried_without_a_lease_means_nothing() -> None:
    event = lease_claimed(lease_expires_at=after(999))

    assert effect(a_run(), event)["lease"] == a_lease()


def test_a_start_at_the_moment_of_expiry_is_too_late() -> None:
    with pytest.raises(InvariantViolation, match="lease is live"):
        apply(a_run(Status.CLAIMED), started(at=after(60)))


def test_an_unrecorded_renewal_survives_until_the_next_event() -> None:
    run = then(a_run(Status.RUNNING), cancellation_requested(lease_expires_at=after(500)))

    assert run.attention_at == after(500)


@pytest.mark.parametrize("status", [s for s in Status if s not in LEASED])
def test_a_heartbeat_without_a_lease_is_refused(status: Status) -> None:
    with pytest.raises(InvariantViolation):
        apply(a_run(status), lease_heartbeat(at=after(600)))


def test_an_attempt_of_an_earlier_claim_cannot_be_completed() -> None:
    run = then(a_run(Status.RUNNING), lease_claimed(at=after(60), token="token-2"))

    with pytest.raises(InvariantViolation):
        apply(run, succeeded(at=after(61), attempt=1))


def test_an_attempt_is_completed_even_if_its_lease_has_expired() -> None:
    run = a_run(Status.RUNNING)

    assert apply(run, succeeded(at=after(3600))).status is Status.SUCCEEDED
    assert apply(run, retry_scheduled(at=after(3600))).status is Status.RETRYING
