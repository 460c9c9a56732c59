"""Versions of tasks: which runs a worker may claim, and runs that its code cannot execute."""

from __future__ import annotations

from typing import Any

import pytest

from builders import CLIENT, RUN_ID, T0, TOKEN, WORKER_ID, a_run, after, delivery_requested, then
from perdure.core.decide import (
    Claim,
    NewRun,
    decide_claim,
    decide_create,
    decide_start,
    decide_unserved,
)
from perdure.core.decide.lease import MAX_HANDOVER_DELAY, MIN_HANDOVER_DELAY, PAYLOAD_MISFIT
from perdure.core.run import events as e
from perdure.core.run.attempts import AttemptStatus, derive_attempts
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import project
from perdure.core.run.run import Policy, Run
from perdure.errors import InvalidInput, NotAllowed

MISFIT = make_failure(FailureKind.REJECTED, type="InvalidPayload", message="x", retryable=False)


def claimed(run: Run, version: int | None, **fields: Any) -> Run:
    offer = Claim(
        token=TOKEN, worker_id=WORKER_ID, lease_ttl=after(60) - T0, version=version, **fields
    )
    return project(run, decide_claim(run, offer, run.claimable_at or T0), run.sequence)


def started(run: Run, version: int | None = None) -> Run:
    return claimed(run, version, start=True)


def unserved(run: Run, **fields: Any) -> Run:
    events = decide_unserved(run, TOKEN, run.updated_at, MISFIT, **fields)
    return project(run, events, run.sequence)


@pytest.mark.parametrize("version", [None, 0, 1])
def test_a_newer_run_cannot_be_claimed(version: int | None) -> None:
    with pytest.raises(NotAllowed, match="it needs version 2 of its task"):
        claimed(a_run(task_version=2), version)


@pytest.mark.parametrize("version", [2, 3])
def test_an_older_run_or_one_of_the_same_version_is_claimed(version: int) -> None:
    run = started(a_run(task_version=2), version)

    assert run.lease is not None
    assert run.lease.version == version


def test_an_attempt_that_begins_after_the_claim_says_its_version_too() -> None:
    run = claimed(a_run(), 4)

    [event] = decide_start(run, TOKEN, T0, 4)

    assert isinstance(event, e.RunStarted)
    assert event.task_version == 4


@pytest.mark.parametrize(
    ("versions", "required"),
    [((2,), 2), ((2, 3), 3), ((None,), 0), ((None, 1), 1)],
    ids=str,
)
def test_the_newest_version_that_executed_an_attempt_is_required(
    versions: tuple[int | None, ...], required: int
) -> None:
    run = a_run(policy=Policy(max_abandons=9))
    for version in versions:
        run = started(run, version)
        assert run.lease is not None
        run = then(run, delivery_requested(at=run.lease.expires_at))

    assert run.required_version == required


def test_what_a_worker_cannot_execute_is_left_to_others_uncounted() -> None:
    run = unserved(started(a_run(task_version=1), 2), misfit="a")

    assert (run.status, run.required_version, run.misfits) == (Status.RELEASED, 1, ("a",))
    assert (run.counters.failures, run.counters.returns) == (0, 0)
    assert run.failure == MISFIT


@pytest.mark.parametrize(("jitter", "delay"), [(-1, MIN_HANDOVER_DELAY), (1, MAX_HANDOVER_DELAY)])
def test_it_is_left_to_others_for_five_to_thirty_seconds(jitter: float, delay: Any) -> None:
    run = unserved(started(a_run()), jitter=jitter)

    assert run.claimable_at == run.updated_at + delay


def test_a_schema_that_refused_a_payload_is_remembered_once() -> None:
    run = a_run()
    for digest in ("a", "b", "a", None):
        run = unserved(started(run), misfit=digest)

    assert run.misfits == ("a", "b")


def test_runs_are_left_to_others_as_often_as_it_takes() -> None:
    run = a_run(policy=Policy(max_returns=1, max_attempts=1))
    for _ in range(100):
        run = unserved(started(run), misfit="a")

    assert run.status is Status.RELEASED


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_payload_that_fits_no_worker_is_a_dead_letter(max_attempts: int) -> None:
    run = unserved(started(a_run(policy=Policy(max_attempts=max_attempts))), is_final=True)

    assert (run.status, run.reason) == (Status.DEAD_LETTERED, PAYLOAD_MISFIT)
    assert run.failure == MISFIT


def test_what_was_asked_to_stop_is_cancelled_instead() -> None:
    run = a_run(Status.CANCELLATION_REQUESTED)

    assert unserved(run).status is Status.CANCELLED


def test_the_attempts_of_a_history_name_the_reason() -> None:
    run = a_run()
    events: list[e.Event] = [e.RunLeaseClaimed(
        run_id=run.id, occurred_at=T0, actor=run.created_by, token=TOKEN, worker_id=WORKER_ID,
        expires_at=after(60),
    )]  # fmt: skip
    running = started(run)
    events += [e.RunStarted(run_id=run.id, occurred_at=T0, actor=run.created_by, attempt=1)]
    events += decide_unserved(running, TOKEN, T0, MISFIT)

    [attempt] = derive_attempts(events)

    assert (attempt.status, attempt.failure) == (AttemptStatus.RELEASED, MISFIT)


@pytest.mark.parametrize("version", [-1, 2**31, True, "2"])
def test_a_version_that_no_database_can_compare_is_refused(version: Any) -> None:
    with pytest.raises(InvalidInput, match="task_version"):
        decide_create(NewRun(task="send", task_version=version), RUN_ID, CLIENT, T0)
