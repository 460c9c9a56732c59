"""The status groups and predicates that storage scans use agree with the decisions."""

from __future__ import annotations

from datetime import timedelta

import pytest

from builders import a_run, after, delivery_requested, then
from perdure.core.decide import decide_attention
from perdure.core.run.eligibility import (
    Reservation,
    cancellation_finalisation_at,
    delivery_recovery_at,
    dispatch_reservation,
    is_runnable,
    needs_cancellation_finalisation,
    needs_delivery_recovery,
    runnable_at,
)
from perdure.core.run.lifecycle import ARROWS, LEASED, EventType, Status

SOON = after(60)
MOMENT = timedelta(microseconds=1)


@pytest.mark.parametrize("status", Status)
def test_runnable_are_the_statuses_that_a_claim_may_follow(status: Status) -> None:
    claimable = any(
        arrow.source is status and arrow.event is EventType.LEASE_CLAIMED
        for arrow in ARROWS.values()
    )

    assert is_runnable(status) or not claimable or status in LEASED
    assert claimable or not is_runnable(status)


@pytest.mark.parametrize("status", Status)
def test_each_instant_belongs_to_the_runs_of_its_group(status: Status) -> None:
    run = a_run(status)
    lease_end = None if run.lease is None else run.lease.expires_at

    assert runnable_at(run) == run.claimable_at
    assert runnable_at(run) is None or is_runnable(status)
    assert delivery_recovery_at(run) == (lease_end if needs_delivery_recovery(status) else None)
    assert cancellation_finalisation_at(run) == (
        lease_end if needs_cancellation_finalisation(status) else None
    )


@pytest.mark.parametrize("status", sorted(LEASED))
def test_maintenance_acts_on_leased_runs_as_their_group_says(status: Status) -> None:
    run = a_run(status)
    due = delivery_recovery_at(run) or cancellation_finalisation_at(run)
    assert due is not None

    first = decide_attention(run, due)[0].type

    assert decide_attention(run, due - MOMENT) == []
    assert (first is EventType.CANCELLED) == needs_cancellation_finalisation(status)


def test_a_reservation_is_active_until_it_expires() -> None:
    free = a_run()
    reserved = then(free, delivery_requested(delivery={"dispatch_expires_at": SOON}))

    assert dispatch_reservation(free, SOON) is None
    assert dispatch_reservation(reserved, reserved.updated_at) is Reservation.ACTIVE
    assert dispatch_reservation(reserved, SOON) is Reservation.EXPIRED
