"""What the holder of a lease may decide, and that nobody else may."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import (
    RESULT,
    T0,
    TOKEN,
    WORKER,
    WORKER_ID,
    a_failure,
    a_policy,
    a_run,
    after,
    awaiting,
    cancellation_requested,
    lease_claimed,
    lease_heartbeat,
    lease_returned,
    parked,
    then,
)
from perdure.core.decide import (
    Claim,
    decide_claim,
    decide_failure,
    decide_interruption,
    decide_release,
    decide_renewal,
    decide_return,
    decide_shutdown,
    decide_start,
    decide_stop,
    decide_success,
)
from perdure.core.decide.lease import MAX_INTERRUPTIONS, Evidence
from perdure.core.run import events as e
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import LEASED, Status
from perdure.core.run.run import SYSTEM, Run
from perdure.errors import LeaseLost, NotAllowed

MINUTE = timedelta(seconds=60)
OFFER = Claim(token=TOKEN, worker_id=WORKER_ID, lease_ttl=MINUTE)
STARTING = Claim(token=TOKEN, worker_id=WORKER_ID, lease_ttl=MINUTE, start=True)
SEEN = Evidence(execution_trace={"span": 1}, output={"log": "hello"})


def asked_to_stop_before_the_start() -> Run:
    return then(a_run(Status.CLAIMED), cancellation_requested(reason="wrong"))


DECISIONS: dict[str, Callable[[Run, str], list[e.Event]]] = {
    "start": lambda run, token: decide_start(run, token, T0),
    "renewal": lambda run, token: decide_renewal(run, token, T0, MINUTE),
    "return": lambda run, token: decide_return(run, token, T0),
    "success": lambda run, token: decide_success(run, token, T0),
    "failure": lambda run, token: decide_failure(run, token, T0, a_failure()),
    "release": lambda run, token: decide_release(run, token, T0),
    "interruption": lambda run, token: decide_interruption(run, token, T0, a_failure()),
    "stop": lambda run, token: decide_stop(run, token, T0),
    "shutdown": lambda run, token: decide_shutdown(run, token, T0),
}


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("status", Status)
def test_a_wrong_token_has_lost_the_lease_whatever_it_asks(name: str, status: Status) -> None:
    with pytest.raises(LeaseLost, match="the token offered does not hold its lease"):
        DECISIONS[name](a_run(status), "stale")


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("status", [s for s in Status if s not in LEASED])
def test_the_right_token_is_worth_nothing_without_a_lease(name: str, status: Status) -> None:
    with pytest.raises(LeaseLost):
        DECISIONS[name](a_run(status), TOKEN)


def test_a_claim_hands_a_due_run_over() -> None:
    [event] = decide_claim(a_run(), OFFER, after(5))

    assert event == lease_claimed(at=after(5))


def test_a_claim_may_begin_the_attempt_at_once() -> None:
    events = decide_claim(a_run(), STARTING, after(5))
    run = then(a_run(), *events)

    assert [type(event) for event in events] == [e.RunLeaseClaimed, e.RunStarted]
    assert (run.status, run.counters.attempts) == (Status.RUNNING, 1)
    assert events[1].lease_expires_at == after(65)


def test_the_lease_lasts_as_the_policy_says_before_the_worker_does() -> None:
    run = a_run(policy=a_policy(lease_ttl=timedelta(seconds=5)))

    [event] = decide_claim(run, OFFER, T0)

    assert isinstance(event, e.RunLeaseClaimed)
    assert event.expires_at == after(5)


@pytest.mark.parametrize("offer", [OFFER, STARTING])
def test_a_claim_that_finds_the_time_to_live_passed_says_so(offer: Claim) -> None:
    run = a_run(expires_at=after(9))

    [event] = decide_claim(run, offer, after(9))

    assert isinstance(event, e.RunExpired)
    assert (event.actor, then(run, event).status) == (SYSTEM, Status.EXPIRED)
    assert isinstance(decide_claim(run, offer, after(8))[0], e.RunLeaseClaimed)


def test_time_to_live_means_nothing_once_an_attempt_has_begun() -> None:
    run = a_run(Status.RETRYING, expires_at=after(9))

    assert isinstance(decide_claim(run, OFFER, after(99))[0], e.RunLeaseClaimed)


@pytest.mark.parametrize("status", sorted(LEASED))
def test_our_own_decisions_never_claim_over_an_expired_lease(status: Status) -> None:
    with pytest.raises(NotAllowed, match="claim"):
        decide_claim(a_run(status), OFFER, after(9999))


@pytest.mark.parametrize(
    "status", [Status.SCHEDULED, Status.RETRYING, Status.WAITING, Status.PAUSED, Status.SUCCEEDED]
)
def test_what_is_not_due_cannot_be_claimed(status: Status) -> None:
    with pytest.raises(NotAllowed, match="not due"):
        decide_claim(a_run(status), OFFER, after(1))


def test_a_wait_past_its_deadline_can_be_claimed() -> None:
    run = then(a_run(Status.RUNNING), parked(awaiting=awaiting(deadline=after(30))))

    assert then(run, *decide_claim(run, STARTING, after(30))).counters.attempts == 2


def test_a_start_begins_the_next_attempt() -> None:
    [event] = decide_start(a_run(Status.CLAIMED), TOKEN, after(1))

    assert isinstance(event, e.RunStarted)
    assert (event.attempt, event.actor, event.lease_expires_at) == (1, WORKER, after(60))


def test_a_start_of_a_claim_that_was_cancelled_ends_it() -> None:
    run = asked_to_stop_before_the_start()

    [event] = decide_start(run, TOKEN, after(1))

    assert isinstance(event, e.RunCancelled)
    assert (then(run, event).status, then(run, event).reason) == (Status.CANCELLED, "wrong")


def test_a_start_on_an_expired_lease_has_lost_it() -> None:
    with pytest.raises(LeaseLost, match="expired before the attempt began"):
        decide_start(a_run(Status.CLAIMED), TOKEN, after(60))


@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLATION_REQUESTED])
def test_an_attempt_does_not_start_twice(status: Status) -> None:
    with pytest.raises(NotAllowed, match="its attempt has begun"):
        decide_start(a_run(status), TOKEN, T0)


@pytest.mark.parametrize("status", sorted(LEASED))
def test_a_renewal_is_a_heartbeat_that_lasts_from_now(status: Status) -> None:
    [event] = decide_renewal(a_run(status), TOKEN, after(20), MINUTE)

    assert event == lease_heartbeat(at=after(20), lease_expires_at=after(60))


def test_a_renewal_never_shortens_the_lease() -> None:
    [event] = decide_renewal(a_run(Status.RUNNING), TOKEN, after(1), timedelta(seconds=1))

    assert isinstance(event, e.RunLeaseHeartbeat)
    assert event.expires_at == after(60)


def test_a_renewal_lasts_as_the_policy_says() -> None:
    run = a_run(Status.RUNNING, policy=a_policy(lease_ttl=timedelta(seconds=90)))

    [event] = decide_renewal(run, TOKEN, after(70), MINUTE)

    assert isinstance(event, e.RunLeaseHeartbeat)
    assert event.expires_at == after(160)


def test_a_claim_is_returned_to_the_queue_or_until_a_time() -> None:
    run = a_run(Status.CLAIMED)

    now = then(run, *decide_return(run, TOKEN, after(1), reason="guard"))
    later = then(run, *decide_return(run, TOKEN, after(1), run_at=after(9)))

    assert (now.status, now.counters.returns, now.counters.attempts) == (Status.QUEUED, 1, 0)
    assert (later.status, later.run_at) == (Status.SCHEDULED, after(9))


def test_a_return_of_a_claim_that_was_cancelled_ends_it() -> None:
    run = asked_to_stop_before_the_start()

    assert then(run, *decide_return(run, TOKEN, T0)).status is Status.CANCELLED


@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLATION_REQUESTED])
def test_an_attempt_that_has_begun_cannot_be_returned(status: Status) -> None:
    with pytest.raises(NotAllowed, match="its attempt has begun"):
        decide_return(a_run(status), TOKEN, T0)


@pytest.mark.parametrize("limit", [0, 2, 50])
def test_a_run_returned_more_often_than_allowed_fails(limit: int) -> None:
    run = a_run(policy=a_policy(max_returns=limit))
    for _ in range(limit):
        run = then(run, lease_claimed())
        run = then(run, *decide_return(run, TOKEN, T0))
        assert run.status is Status.QUEUED

    run = then(run, lease_claimed())
    run = then(run, *decide_return(run, TOKEN, T0))

    assert (run.status, run.reason) == (Status.FAILED, "returned_too_often")
    assert run.failure is not None
    assert run.failure.kind is FailureKind.SYSTEM
    assert run.failure.message == f"returned {limit + 1} times without an attempt"


@pytest.mark.parametrize("status", [Status.RUNNING, Status.CANCELLATION_REQUESTED])
def test_success_stands_even_while_cancelling(status: Status) -> None:
    run = a_run(status)

    [event] = decide_success(run, TOKEN, after(5), RESULT, SEEN)

    assert then(run, event).result == {"sent": True}
    assert isinstance(event, e.RunSucceeded)
    assert (event.execution_trace, event.output) == ({"span": 1}, {"log": "hello"})


def test_success_with_null_differs_from_success_without_a_result() -> None:
    run = a_run(Status.RUNNING)

    nothing = then(run, *decide_success(run, TOKEN, T0))
    null = then(run, *decide_success(run, TOKEN, T0, msgspec.Raw(b"null")))

    assert nothing.result_json is msgspec.UNSET
    assert null.result_json == msgspec.Raw(b"null")
    assert nothing.result is null.result is None


@pytest.mark.parametrize("name", ["success", "release"])
def test_an_attempt_that_has_not_begun_cannot_end(name: str) -> None:
    for run in (a_run(Status.CLAIMED), asked_to_stop_before_the_start()):
        with pytest.raises(NotAllowed, match="no attempt has begun"):
            DECISIONS[name](run, TOKEN)


def test_a_release_waits_until_its_time_or_for_something_or_not_at_all() -> None:
    run = a_run(Status.RUNNING)

    def release(**how: Any) -> Run:
        return then(run, *decide_release(run, TOKEN, after(5), evidence=SEEN, **how))

    timed = release(resume_at=after(9), reason="later")
    waiting = release(awaiting=awaiting("paid"))
    now = release()
    assert (timed.status, timed.run_at) == (Status.RELEASED, after(9))
    assert (waiting.status, waiting.awaiting) == (Status.WAITING, awaiting("paid"))
    assert (now.status, now.run_at) == (Status.RELEASED, after(5))


def test_a_release_while_cancelling_becomes_cancelled() -> None:
    run = a_run(Status.CANCELLATION_REQUESTED)

    [event] = decide_release(run, TOKEN, T0, resume_at=after(9), evidence=SEEN)

    assert isinstance(event, e.RunCancelled)
    assert (event.execution_trace, event.output) == ({"span": 1}, {"log": "hello"})


def test_an_owner_that_was_asked_stops() -> None:
    for run in (a_run(Status.CANCELLATION_REQUESTED), asked_to_stop_before_the_start()):
        [event] = decide_stop(run, TOKEN, after(5), evidence=SEEN)
        assert (event.actor, then(run, event).status) == (WORKER, Status.CANCELLED)


@pytest.mark.parametrize("status", [Status.CLAIMED, Status.RUNNING])
def test_an_owner_that_was_not_asked_cannot_stop(status: Status) -> None:
    with pytest.raises(NotAllowed, match="nobody asked for a cancellation"):
        decide_stop(a_run(status), TOKEN, T0)


def test_shutdown_returns_what_has_not_begun() -> None:
    [event] = decide_shutdown(a_run(Status.CLAIMED), TOKEN, after(5))

    assert event == lease_returned(at=after(5), lease_expires_at=after(60), reason="shutdown")


def test_shutdown_releases_what_has_begun_to_the_queue_uncounted() -> None:
    run = a_run(Status.RUNNING)

    stopped = then(run, *decide_shutdown(run, TOKEN, after(5)))

    assert (stopped.status, stopped.claimable_at) == (Status.RELEASED, after(5))
    assert (stopped.counters.failures, stopped.counters.releases) == (0, 1)


def test_shutdown_ends_what_was_asked_to_stop() -> None:
    for run in (a_run(Status.CANCELLATION_REQUESTED), asked_to_stop_before_the_start()):
        assert then(run, *decide_shutdown(run, TOKEN, T0)).status is Status.CANCELLED


EARLY = T0 - timedelta(hours=1)


def test_a_clock_that_steps_back_cannot_reorder_a_history() -> None:
    run = a_run(Status.RUNNING)
    for events in (
        decide_claim(a_run(), STARTING, EARLY),
        decide_start(a_run(Status.CLAIMED), TOKEN, EARLY),
        decide_renewal(run, TOKEN, EARLY, MINUTE),
        decide_return(a_run(Status.CLAIMED), TOKEN, EARLY),
        decide_success(run, TOKEN, EARLY),
        decide_failure(run, TOKEN, EARLY, a_failure()),
        decide_release(run, TOKEN, EARLY),
    ):
        assert {event.occurred_at for event in events} == {T0}


def test_times_made_from_a_clock_that_stepped_back_start_at_the_last_event() -> None:
    run = a_run(Status.RUNNING)

    [renewal] = decide_renewal(run, TOKEN, EARLY, 2 * MINUTE)
    [release] = decide_release(run, TOKEN, EARLY)
    [retry] = decide_failure(run, TOKEN, EARLY, a_failure())

    assert isinstance(renewal, e.RunLeaseHeartbeat)
    assert isinstance(release, e.RunReleased)
    assert isinstance(retry, e.RunRetryScheduled)
    assert (renewal.expires_at, release.resume_at) == (after(120), T0)
    assert retry.retry_at == after(1)


def interruption(run: Run, at: datetime = T0, jitter: float = 0.0) -> Run:
    return then(run, *decide_interruption(run, TOKEN, at, a_failure(), jitter=jitter))


def test_an_interrupted_attempt_is_made_again_uncounted() -> None:
    run = a_run(Status.RUNNING)

    interrupted = interruption(run, after(5))

    assert (interrupted.status, interrupted.claimable_at) == (Status.RELEASED, after(5.5))
    assert (interrupted.counters.failures, interrupted.interruptions) == (0, 1)


def test_interruptions_in_a_row_are_further_and_further_apart() -> None:
    delays = [
        interruption(replace(a_run(Status.RUNNING), interruptions=count), jitter=1.0).claimable_at
        for count in (0, 1, 9)
    ]

    assert delays == [after(0.6), after(1.2), after(36)]


def test_an_attempt_that_is_interrupted_again_and_again_has_failed() -> None:
    run = replace(a_run(Status.RUNNING), interruptions=MAX_INTERRUPTIONS)

    failed = interruption(run)

    assert (failed.status, failed.counters.failures, failed.interruptions) == (
        Status.RETRYING,
        1,
        0,
    )


def test_another_release_ends_the_row_of_interruptions() -> None:
    run = replace(a_run(Status.RUNNING), interruptions=3)

    assert then(run, *decide_release(run, TOKEN, T0)).interruptions == 0


def test_an_interruption_ends_what_was_asked_to_stop() -> None:
    assert interruption(a_run(Status.CANCELLATION_REQUESTED)).status is Status.CANCELLED
