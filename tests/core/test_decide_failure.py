"""What follows a failure: another try, a dead letter, or the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import (
    LEASE,
    T0,
    TOKEN,
    WORKER_ID,
    a_failure,
    a_policy,
    a_run,
    after,
    cancellation_requested,
    then,
)
from perdure.core.decide import Claim, decide_claim, decide_failure, decide_release, decide_return
from perdure.core.decide.lease import Evidence
from perdure.core.run import events as e
from perdure.core.run.backoff import Backoff
from perdure.core.run.failure import Failure, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import OnExhausted, Policy, Run
from perdure.errors import NotAllowed

NOW = Backoff(initial=timedelta(0))
FATAL = a_failure("no such user", retryable=False)


def attempting(run: Run) -> Run:
    offer = Claim(token=TOKEN, worker_id=WORKER_ID, lease_ttl=LEASE, start=True)
    assert run.claimable_at is not None
    return then(run, *decide_claim(run, offer, run.claimable_at))


def running(**policy: Any) -> Run:
    return a_run(Status.RUNNING, policy=a_policy(**policy))


def fail(run: Run, failure: Failure | None = None, **how: Any) -> Run:
    return then(run, *decide_failure(run, TOKEN, run.updated_at, failure or a_failure(), **how))


def fail_until_the_end(policy: Policy, *failures: Failure) -> Run:
    """Fail attempt after attempt; the last failure repeats."""
    run, left = a_run(policy=policy), list(failures) or [a_failure()]
    while not run.is_terminal:
        run = fail(attempting(run), left.pop(0) if len(left) > 1 else left[0])
    return run


@pytest.mark.parametrize(("allowed", "tries"), [(0, 1), (1, 1), (2, 2), (3, 3), (7, 7)])
def test_max_attempts_is_total_tries_and_zero_means_one(allowed: int, tries: int) -> None:
    run = fail_until_the_end(a_policy(max_attempts=allowed, backoff=NOW))

    assert (run.counters.attempts, run.counters.failures) == (tries, tries)
    assert run.counters.retries == tries - 1


def test_releases_returns_and_waits_cost_nothing() -> None:
    run = a_run(policy=a_policy(max_attempts=2, backoff=NOW))
    offer = Claim(token=TOKEN, worker_id=WORKER_ID, lease_ttl=LEASE)
    for _ in range(5):
        run = attempting(run)
        run = then(run, *decide_release(run, TOKEN, T0))
        run = then(run, *decide_claim(run, offer, T0))
        run = then(run, *decide_return(run, TOKEN, T0))

    run = fail(attempting(run))

    assert (run.status, run.counters.attempts, run.counters.failures) == (Status.RETRYING, 6, 1)


@pytest.mark.parametrize("allowed", [0, 1, 2])
@pytest.mark.parametrize("on_exhausted", [None, OnExhausted.FAIL, OnExhausted.DEAD_LETTER])
@pytest.mark.parametrize("retryable", [True, False])
def test_an_exhausted_run_fails_or_becomes_a_dead_letter(
    allowed: int, on_exhausted: OnExhausted | None, retryable: bool
) -> None:
    policy = a_policy(max_attempts=allowed, on_exhausted=on_exhausted, backoff=NOW)
    run = fail_until_the_end(policy, a_failure(retryable=retryable))

    default = OnExhausted.DEAD_LETTER if allowed > 1 else OnExhausted.FAIL
    dead = retryable and (on_exhausted or default) is OnExhausted.DEAD_LETTER
    assert run.status is (Status.DEAD_LETTERED if dead else Status.FAILED)
    assert run.reason == ("exhausted" if dead else None)


def test_a_permanent_failure_is_not_tried_again() -> None:
    run = fail(running(max_attempts=5), FATAL)

    assert (run.status, run.failure) == (Status.FAILED, FATAL)


def test_a_retry_is_due_after_the_backoff() -> None:
    run = fail(running())

    assert (run.status, run.run_at) == (Status.RETRYING, after(1))


@pytest.mark.parametrize(("jitter", "seconds"), [(-1.0, 0.8), (0.0, 1.0), (1.0, 1.2)])
def test_jitter_spreads_the_retry(jitter: float, seconds: float) -> None:
    assert fail(running(), jitter=jitter).run_at == after(seconds)


def test_the_backoff_grows_with_the_failures_not_with_the_attempts() -> None:
    run = running()
    run = attempting(then(run, *decide_release(run, TOKEN, T0)))
    delays = []
    for _ in range(2):
        run = fail(run)
        assert run.run_at is not None
        delays.append((run.run_at - run.updated_at).total_seconds())
        run = attempting(run)

    assert delays == [1.0, 2.0]


@pytest.mark.parametrize("seconds", [0, 7, 7200])
def test_a_handler_may_say_when_to_try_again(seconds: int) -> None:
    wish = timedelta(seconds=seconds)

    assert fail(running(), retry_after=wish, jitter=1.0).run_at == after(seconds)


def test_asking_for_a_retry_does_not_buy_one() -> None:
    assert fail(running(max_attempts=1), retry_after=timedelta(seconds=1)).status is Status.FAILED


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_a_run_that_fails_the_same_way_often_enough_is_poison(threshold: int) -> None:
    policy = a_policy(max_attempts=10, poison_threshold=threshold, backoff=NOW)
    run = fail_until_the_end(policy)

    assert (run.status, run.reason) == (Status.DEAD_LETTERED, "poison")
    assert run.counters.failures == threshold


def test_another_failure_breaks_the_streak() -> None:
    policy = a_policy(max_attempts=10, poison_threshold=2, backoff=NOW)
    run = fail_until_the_end(policy, a_failure("a"), a_failure("b"), a_failure("a"))

    assert (run.reason, run.counters.failures) == ("poison", 4)


def test_a_poisonous_run_is_a_dead_letter_whatever_else_the_policy_says() -> None:
    policy = {"max_attempts": 1, "on_exhausted": OnExhausted.FAIL, "poison_threshold": 1}

    for failure in (a_failure(), FATAL):
        assert fail(running(**policy), failure).reason == "poison"


def test_without_a_threshold_nothing_is_poison() -> None:
    assert fail_until_the_end(a_policy(max_attempts=30, backoff=NOW)).reason == "exhausted"


@pytest.mark.parametrize("failure", [a_failure(), FATAL])
def test_while_cancelling_a_failure_is_final(failure: Failure) -> None:
    policy = a_policy(max_attempts=9, poison_threshold=1)
    run = a_run(Status.CANCELLATION_REQUESTED, policy=policy)

    run = fail(run, failure)

    assert (run.status, run.failure) == (Status.FAILED, failure)


@pytest.mark.parametrize("kind", [FailureKind.SYSTEM, FailureKind.REJECTED])
@pytest.mark.parametrize("retryable", [True, False])
def test_a_claim_that_cannot_become_an_attempt_ends(kind: FailureKind, retryable: bool) -> None:
    run = fail(a_run(Status.CLAIMED), a_failure(kind=kind, retryable=retryable))

    assert run.status is (Status.DEAD_LETTERED if retryable else Status.FAILED)
    assert (run.counters.attempts, run.counters.failures) == (0, 1)


@pytest.mark.parametrize("kind", [FailureKind.ERROR, FailureKind.TIMEOUT, FailureKind.CRASH])
def test_an_attempt_that_has_not_begun_cannot_fail(kind: FailureKind) -> None:
    with pytest.raises(NotAllowed, match="no attempt has begun"):
        fail(a_run(Status.CLAIMED), a_failure(kind=kind))


@pytest.mark.parametrize("kind", FailureKind)
def test_a_claim_that_was_cancelled_and_fails_is_cancelled(kind: FailureKind) -> None:
    run = then(a_run(Status.CLAIMED), cancellation_requested())

    assert fail(run, a_failure(kind=kind)).status is Status.CANCELLED


@pytest.mark.parametrize(
    ("policy", "ending"),
    [
        ({"max_attempts": 2}, e.RunRetryScheduled),
        ({"max_attempts": 1}, e.RunFailed),
        ({"poison_threshold": 1}, e.RunDeadLettered),
        ({"max_attempts": 1, "on_exhausted": OnExhausted.DEAD_LETTER}, e.RunDeadLettered),
    ],
)
def test_every_ending_carries_attempt_failure_and_evidence(policy: Any, ending: Any) -> None:
    seen = Evidence(execution_trace={"span": 1}, output={"log": "hello"})

    [event] = decide_failure(running(**policy), TOKEN, T0, a_failure(), evidence=seen)

    assert type(event) is ending
    assert isinstance(event, e.RunRetryScheduled | e.RunFailed | e.RunDeadLettered)
    assert (event.attempt, event.failure) == (1, a_failure())
    assert (event.execution_trace, event.output) == ({"span": 1}, {"log": "hello"})
    assert event.lease_expires_at == after(60)


def test_a_claim_that_could_not_begin_says_so_in_its_dead_letter() -> None:
    broken = a_failure("no such handler", FailureKind.SYSTEM)

    [event] = decide_failure(a_run(Status.CLAIMED), TOKEN, T0, broken)

    assert isinstance(event, e.RunDeadLettered)
    assert event.reason == "never_began"


def test_however_long_the_wait_the_retry_stays_an_instant() -> None:
    [event] = decide_failure(
        a_run(Status.RUNNING), TOKEN, T0, a_failure(), retry_after=timedelta.max
    )

    assert isinstance(event, e.RunRetryScheduled)
    assert event.retry_at == T0 + timedelta(days=3650)
