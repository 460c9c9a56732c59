"""What maintenance decides, once nobody holds a live lease."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import (
    T0,
    a_policy,
    a_run,
    after,
    cancellation_requested,
    delivery_requested,
    lease_claimed,
    lease_heartbeat,
    lease_returned,
    parked,
    released,
    started,
    then,
)
from perdure.core.decide import (
    decide_attention,
    decide_expiry,
    decide_failure,
    decide_recovery,
    decide_release,
    decide_shutdown,
)
from perdure.core.decide.recovery import DIED_ALONE
from perdure.core.run import events as e
from perdure.core.run.failure import CRASH, FailureKind, make_failure
from perdure.core.run.lifecycle import LEASED, TERMINAL, Status
from perdure.core.run.run import SYSTEM, OnExhausted, OnLeaseExpired, Run

DEAD = after(60)


def held(status: Status, **policy: Any) -> Run:
    return a_run(status, policy=a_policy(**policy))


def recover(run: Run, jitter: float = 0.0) -> Run:
    assert run.lease is not None
    return then(run, *decide_recovery(run, run.lease.expires_at, jitter))


@pytest.mark.parametrize("status", sorted(LEASED))
def test_a_live_lease_is_left_alone(status: Status) -> None:
    assert decide_recovery(a_run(status), after(59)) == []
    assert decide_attention(a_run(status), after(59)) == []


@pytest.mark.parametrize("status", [s for s in Status if s not in LEASED])
def test_a_run_without_a_lease_needs_no_recovery(status: Status) -> None:
    assert decide_recovery(a_run(status), after(9999)) == []


def test_a_renewed_lease_is_live() -> None:
    run = then(a_run(Status.RUNNING), lease_heartbeat(at=after(50)))

    assert decide_recovery(run, after(109)) == []
    assert decide_recovery(run, after(110)) != []


def test_a_lost_claim_goes_back_to_the_queue_and_costs_no_attempt() -> None:
    run = recover(a_run(Status.CLAIMED))

    assert (run.status, run.run_at, run.lease) == (Status.QUEUED, DEAD, None)
    assert (run.counters.abandons, run.counters.attempts, run.counters.failures) == (1, 0, 0)


def lose_every_lease(run: Run, *, begin: bool) -> Run:
    """Claim it, perhaps begin, and vanish, again and again until it ends."""
    while not run.is_terminal:
        assert run.claimable_at is not None
        now = run.claimable_at
        run = then(run, lease_claimed(at=now))
        if begin:
            run = then(run, started(at=now, attempt=run.counters.attempts + 1))
        run = recover(run)
    return run


@pytest.mark.parametrize("allowed", [0, 1, 10])
@pytest.mark.parametrize("begin", [False, True])
def test_a_run_that_kills_every_worker_is_poison(allowed: int, begin: bool) -> None:
    policy = a_policy(max_abandons=allowed, on_lease_expired=OnLeaseExpired.REDELIVER)
    run = lose_every_lease(a_run(policy=policy), begin=begin)

    assert (run.status, run.reason) == (Status.DEAD_LETTERED, "poison")
    assert (run.counters.abandons, run.counters.claims) == (allowed, allowed + 1)
    assert run.failure is not None
    assert run.failure.kind is FailureKind.SYSTEM
    assert run.failure.message == f"its lease expired {allowed + 1} times"


def test_the_default_is_ten_abandons() -> None:
    run = lose_every_lease(a_run(), begin=False)

    assert run.counters.abandons == 10


@pytest.mark.parametrize("how", [OnLeaseExpired.RETRY, OnLeaseExpired.REDELIVER])
def test_a_death_beside_other_runs_costs_nothing(how: OnLeaseExpired) -> None:
    run = recover(held(Status.RUNNING, on_lease_expired=how))

    assert (run.status, run.failure, run.run_at) == (Status.QUEUED, None, DEAD)
    assert (run.counters.failures, run.counters.abandons) == (0, 1)
    assert (run.deaths, run.is_suspect) == (1, False)


def test_a_run_is_suspect_after_two_deaths_in_a_row() -> None:
    run = recover(begun(recover(held(Status.RUNNING))))

    assert (run.deaths, run.is_suspect, run.counters.failures) == (2, True, 0)


def test_a_lost_claim_is_no_death() -> None:
    run = recover(a_run(Status.CLAIMED))

    assert run.deaths == 0


def begun(run: Run) -> Run:
    now = run.claimable_at
    assert now is not None
    run = then(run, lease_claimed(at=now))
    return then(run, started(at=now, attempt=run.counters.attempts + 1))


def suspected(**policy: Any) -> Run:
    """A run that executes alone, after two deaths beside others."""
    return begun(recover(begun(recover(held(Status.RUNNING, **policy)))))


def test_the_death_of_a_worker_that_executes_a_suspect_alone_is_a_counted_crash() -> None:
    alone = suspected()
    run = recover(alone)

    assert alone.lease is not None
    assert (run.status, run.failure) == (Status.RETRYING, DIED_ALONE)
    assert run.run_at == alone.lease.expires_at + timedelta(seconds=1)
    assert DIED_ALONE.kind is FailureKind.CRASH
    assert (run.counters.failures, run.counters.abandons, run.is_suspect) == (1, 2, True)


def test_the_retry_after_a_crash_has_jitter_too() -> None:
    alone = suspected()

    assert alone.lease is not None
    assert recover(alone, jitter=1.0).run_at == alone.lease.expires_at + timedelta(seconds=1.2)


def test_a_run_that_kills_every_worker_is_a_poisonous_dead_letter_after_its_budget() -> None:
    run = lose_every_lease(a_run(policy=a_policy(max_attempts=4)), begin=True)

    assert (run.status, run.reason, run.failure) == (Status.DEAD_LETTERED, "poison", DIED_ALONE)
    assert (run.counters.attempts, run.counters.failures, run.deaths) == (6, 4, 2)


def test_a_suspect_whose_handler_fails_is_no_suspect_any_more() -> None:
    run = suspected()
    assert run.lease is not None
    failure = make_failure(FailureKind.ERROR, type="ValueError", message="no")

    failed = then(run, *decide_failure(run, run.lease.token, run.updated_at, failure))

    assert (failed.status, failed.deaths, failed.is_suspect) == (Status.RETRYING, 0, False)


def test_a_suspect_that_gives_itself_back_is_no_suspect_any_more() -> None:
    run = suspected()
    assert run.lease is not None

    assert then(run, *decide_release(run, run.lease.token, run.updated_at)).deaths == 0


def test_a_suspect_that_a_stopping_worker_hands_over_stays_one() -> None:
    run = suspected()
    assert run.lease is not None

    assert then(run, *decide_shutdown(run, run.lease.token, run.updated_at)).is_suspect


def test_a_single_attempt_that_crashes_fails_or_is_dead_lettered_as_policy_says() -> None:
    once = recover(held(Status.RUNNING, max_attempts=1))
    dead = recover(held(Status.RUNNING, max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER))

    assert (once.status, dead.status) == (Status.FAILED, Status.DEAD_LETTERED)


def test_crashes_in_a_row_count_towards_poison() -> None:
    policy = a_policy(max_attempts=9, poison_threshold=2)
    run = lose_every_lease(a_run(policy=policy), begin=True)

    assert (run.reason, run.counters.failures) == ("poison", 2)


def test_a_policy_may_let_a_lost_attempt_fail_for_good() -> None:
    run = recover(held(Status.RUNNING, on_lease_expired=OnLeaseExpired.FAIL, max_attempts=9))

    assert (run.status, run.failure, run.counters.failures) == (Status.FAILED, CRASH, 1)


def test_a_policy_may_redeliver_a_lost_attempt_uncounted() -> None:
    run = recover(held(Status.RUNNING, on_lease_expired=OnLeaseExpired.REDELIVER))

    assert (run.status, run.counters.failures, run.counters.abandons) == (Status.QUEUED, 0, 1)


@pytest.mark.parametrize("how", OnLeaseExpired)
def test_a_lost_owner_that_was_asked_to_stop_is_cancelled(how: OnLeaseExpired) -> None:
    begun = held(Status.CANCELLATION_REQUESTED, on_lease_expired=how)
    unbegun = then(held(Status.CLAIMED, on_lease_expired=how), cancellation_requested())

    assert recover(begun).status is recover(unbegun).status is Status.CANCELLED


@pytest.mark.parametrize("status", sorted(LEASED))
def test_recovery_is_the_systems_doing(status: Status) -> None:
    [event] = decide_recovery(a_run(status), DEAD)

    assert (event.actor, event.lease_expires_at) == (SYSTEM, DEAD)


@pytest.mark.parametrize("status", [Status.QUEUED, Status.SCHEDULED, Status.PAUSED])
def test_a_run_that_nobody_began_in_time_expires(status: Status) -> None:
    run = a_run(status, expires_at=after(9))

    assert decide_expiry(run, after(8)) == []
    assert then(run, *decide_expiry(run, after(9))).status is Status.EXPIRED
    assert decide_attention(run, after(9)) == decide_expiry(run, after(9))


def test_a_run_without_a_time_to_live_never_expires() -> None:
    assert decide_expiry(a_run(), after(10**9)) == []


def test_a_run_that_has_begun_never_expires() -> None:
    for status in set(Status) - {Status.QUEUED, Status.SCHEDULED, Status.PAUSED}:
        assert decide_expiry(a_run(status, expires_at=after(9)), after(9999)) == []


def test_a_reservation_that_ran_out_is_delivered_anew() -> None:
    run = then(a_run(), delivery_requested(delivery={"dispatch_expires_at": after(9)}))

    assert decide_attention(run, after(8)) == []
    [event] = decide_attention(run, after(9))
    freed = then(run, event)

    assert isinstance(event, e.RunDeliveryRequested)
    assert (freed.status, freed.run_at) == (Status.QUEUED, after(9))
    assert (freed.dispatched_at, freed.dispatch_expires_at) == (None, None)


def test_time_to_live_comes_before_a_new_delivery() -> None:
    run = a_run(expires_at=after(9))
    run = then(run, delivery_requested(delivery={"dispatch_expires_at": after(9)}))

    assert isinstance(decide_attention(run, after(9))[0], e.RunExpired)


@pytest.mark.parametrize("status", sorted(set(TERMINAL) | {Status.WAITING, Status.RETRYING}))
def test_where_nothing_is_due_nothing_is_decided(status: Status) -> None:
    assert decide_attention(a_run(status), after(9999)) == []


def test_what_attention_decided_needs_no_attention_again_at_once() -> None:
    for status in LEASED:
        run = a_run(status)
        once = then(run, *decide_attention(run, DEAD))
        assert decide_attention(once, DEAD) == []


def test_a_wait_is_not_recovered_before_its_deadline() -> None:
    run = then(a_run(Status.RUNNING), parked())

    assert run.attention_at is None
    assert decide_attention(run, T0) == []


def test_a_run_that_has_begun_does_not_expire_even_if_it_is_queued_again() -> None:
    begun = a_run(Status.RUNNING, expires_at=after(9))
    run = then(begun, released(resume_at=T0), lease_claimed(), lease_returned())
    assert run.status is Status.QUEUED

    assert (run.may_expire, run.attention_at) == (False, None)
    assert decide_expiry(run, after(9)) == []


def test_a_reservation_that_ran_out_before_its_run_is_due_waits_for_it() -> None:
    later = {"available_at": after(90), "dispatch_expires_at": after(30)}
    run = then(a_run(), delivery_requested(delivery=later))

    assert decide_attention(run, after(60)) == []
    assert [event.type for event in decide_attention(run, after(90))] == ["run.delivery_requested"]
