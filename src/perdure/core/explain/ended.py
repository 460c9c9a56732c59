"""Why a run ended, and who has it while it has not: what its own history tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from msgspec.structs import replace

from perdure.core.decide.recovery import ABANDONED, DIED_ALONE
from perdure.core.explain.inputs import Facts
from perdure.core.explain.reason import Code, Reason, at, because, blamed, named, spent
from perdure.core.run import events as e
from perdure.core.run.attempts import Attempt, AttemptStatus, derive_attempts
from perdure.core.run.effects import DeadLetter, DeadLetterStatus
from perdure.core.run.failure import CRASH, Failure, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import SYSTEM, Lease, Run
from perdure.core.run.skip import SkipReason, told_skip

LOST_LEASES = (CRASH.type, ABANDONED, DIED_ALONE.type)
"""Types of failures that a worker did not report."""

E = TypeVar("E", bound=e.Fact)


def ended(facts: Facts) -> Reason:
    """How and why it ended."""
    reason, successor = _TELL[facts.run.status](facts), facts.successor
    if successor is None or reason.run_id is not None:
        return reason
    sentence = f"{reason.sentence} {successor} is its retry or rerun."
    return replace(reason, sentence=sentence, run_id=successor)


def _succeeded(facts: Facts) -> Reason:
    run = facts.run
    attempts = run.counters.attempts
    return _ending(run, Code.SUCCEEDED, f"succeeded with attempt {attempts}.", attempt=attempts)


def _failed(facts: Facts) -> Reason:
    run = facts.run
    failure = _failure(run)
    how = f"failed for good with {spent(run)}"
    return _ending(run, Code.FAILED, f"{how}{blamed(failure)}", failure=failure)


def _dead_lettered(facts: Facts) -> Reason:
    run, letter = facts.run, facts.dead_letter
    failure = _failure(run)
    how = f"became a dead letter ({run.reason}) with {spent(run)}"
    return _ending(
        run,
        Code.DEAD_LETTERED,
        f"{how}{blamed(failure)} {_fate(letter)}",
        failure=failure,
        reason=run.reason,
        who=None if letter is None else letter.closed_by,
        run_id=None if letter is None else letter.replay_run_id,
    )


def _fate(letter: DeadLetter | None) -> str:
    if letter is None:
        return "The letter is not kept any more."
    if letter.status is DeadLetterStatus.OPEN:
        return "The letter is open: replay or discard it."
    who = "" if letter.closed_by is None else f" by {named(letter.closed_by)}"
    new = "" if letter.replay_run_id is None else f" as {letter.replay_run_id}"
    return f"The letter was {letter.status}{who}{new}{because(letter.closed_reason)}"


def _cancelled(facts: Facts) -> Reason:
    run, asked = facts.run, facts.run.cancellation
    assert asked is not None
    words = f"was cancelled by {named(asked.actor)}{because(asked.reason)}"
    return _ending(run, Code.CANCELLED, words, who=asked.actor, reason=asked.reason)


def _expired(facts: Facts) -> Reason:
    run = facts.run
    assert run.expires_at is not None
    words = f"expired: no attempt had begun by {at(run.expires_at)}."
    return _ending(run, Code.EXPIRED, words, ends_at=run.expires_at)


def _skipped(facts: Facts) -> Reason:
    run = facts.run
    event = last(facts, e.RunSkipped)
    code = Code.SUPERSEDED if run.reason == SkipReason.SUPERSEDED else Code.SKIPPED
    words = f"was {'superseded' if code is Code.SUPERSEDED else 'skipped'} by {named(event.actor)}"
    why = told_skip(run.reason, event.evidence, event.occurred_at)
    return _ending(run, code, words + because(why), who=event.actor, reason=run.reason)


_TELL = {
    Status.SUCCEEDED: _succeeded,
    Status.FAILED: _failed,
    Status.DEAD_LETTERED: _dead_lettered,
    Status.CANCELLED: _cancelled,
    Status.EXPIRED: _expired,
    Status.SKIPPED: _skipped,
}


def _ending(run: Run, code: Code, words: str, **fields: object) -> Reason:
    assert run.finished_at is not None
    sentence = f"At {at(run.finished_at)} it {words}"
    return Reason(code=code, sentence=sentence, since=run.finished_at, **fields)  # type: ignore[arg-type]  # each caller names fields of a Reason


def _failure(run: Run) -> Failure:
    assert run.failure is not None
    return run.failure


def leased(facts: Facts, lease: Lease) -> Iterator[Reason]:
    """Which worker has it, and how far it is."""
    run = facts.run
    is_expired = lease.expires_at <= facts.now
    if run.status is Status.CANCELLATION_REQUESTED:
        yield _cancelling(run, lease)
    elif not is_expired:
        yield _with_a_worker(run, lease)
    if is_expired:
        yield _lease_expired(lease)


def _with_a_worker(run: Run, lease: Lease) -> Reason:
    if lease.attempt is None:
        since, code = lease.claimed_at, Code.CLAIMED
        words = f"claimed it at {at(since)} and has not begun"
    else:
        since, code = run.started_at or lease.claimed_at, Code.RUNNING
        words = f"has been running attempt {lease.attempt} since {at(since)}"
    return Reason(
        code=code,
        sentence=f"Worker {lease.worker_id} {words}; its lease lasts until {at(lease.expires_at)}.",
        worker_id=lease.worker_id,
        since=since,
        until=lease.expires_at,
        attempt=lease.attempt,
    )


def _cancelling(run: Run, lease: Lease) -> Reason:
    asked = run.cancellation
    assert asked is not None
    words = f"asked to cancel it at {at(asked.at)}{because(asked.reason)}"
    return Reason(
        code=Code.CANCELLING,
        sentence=f"{named(asked.actor).capitalize()} {words} Worker {lease.worker_id} has been "
        "told and has not stopped yet.",
        who=asked.actor,
        since=asked.at,
        reason=asked.reason,
        worker_id=lease.worker_id,
        until=lease.expires_at,
        attempt=lease.attempt,
    )


def _lease_expired(lease: Lease) -> Reason:
    return Reason(
        code=Code.LEASE_EXPIRED,
        sentence=f"The lease of worker {lease.worker_id} expired at {at(lease.expires_at)}; "
        "maintenance takes the run back once it has waited out its grace.",
        worker_id=lease.worker_id,
        since=lease.expires_at,
        attempt=lease.attempt,
    )


def lost(facts: Facts) -> Iterator[Reason]:
    """Code that may be running although nobody waits for it. Of a run that has ended it only
    matters if that is how it ended."""
    attempts = derive_attempts(facts.history)
    if facts.run.is_terminal:
        attempts = attempts[-1:]
    gone = [attempt for attempt in attempts if _is_lost(attempt, facts)]
    if gone:
        yield _lost(facts.run.id, gone[-1])


def _is_lost(attempt: Attempt, facts: Facts) -> bool:
    if attempt.status is AttemptStatus.CANCELLED:
        return last(facts, e.RunCancelled).actor == SYSTEM
    if attempt.failure is not None:
        return _is_lost_lease(attempt.failure)
    return attempt.status is AttemptStatus.ABANDONED


def _is_lost_lease(failure: Failure) -> bool:
    """Whether the worker was not heard of any more, rather than told of an error."""
    return failure.kind is not FailureKind.ERROR and failure.type in LOST_LEASES


def _lost(run_id: str, attempt: Attempt) -> Reason:
    return Reason(
        code=Code.LOST_LEASE,
        sentence=f"User code of a lost lease may still be running: attempt {attempt.number} on "
        f"worker {attempt.worker_id}.",
        run_id=run_id,
        worker_id=attempt.worker_id,
        attempt=attempt.number,
        since=attempt.finished_at,
    )


def last(facts: Facts, type: type[E]) -> E:
    """The latest event of a type that the run's status says there is."""
    return next(event for event in reversed(facts.history) if isinstance(event, type))
