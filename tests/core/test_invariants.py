"""Every check passes lawful runs, and every check can fail."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import (
    T0,
    TOKEN,
    a_run,
    after,
    awaiting,
    cancellation_requested,
    delivery_requested,
    history,
    lease_claimed,
    lease_heartbeat,
    paused,
    started,
    succeeded,
    then,
)
from perdure.core.invariants import (
    CommittedStep,
    check_history,
    check_run,
    check_step,
    differences,
)
from perdure.core.json_text import encode_value
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Counters, Run


def leased(status: Status = Status.RUNNING, **lease: Any) -> Run:
    run = a_run(status)
    assert run.lease is not None
    return replace(run, lease=replace(run.lease, **lease))


@pytest.mark.parametrize("status", Status)
def test_a_lawful_run_has_no_problems(status: Status) -> None:
    run = a_run(status)

    assert check_run(run) == []
    assert check_history(run, history(status)) == []


BROKEN_RUNS = [
    (replace(a_run(Status.RUNNING), lease=None), "running without a lease"),
    (replace(leased(), status=Status.QUEUED), "queued with a lease"),
    (leased(Status.RUNNING, attempt=None), "running without an attempt"),
    (leased(Status.CLAIMED, attempt=1), "claimed with an attempt"),
    (replace(a_run(Status.SCHEDULED), run_at=None), "nothing will ever look at it again"),
    (replace(a_run(Status.WAITING), awaiting=None), "nothing will ever look at it again"),
    (replace(a_run(), counters=Counters(attempts=1)), "1 attempts in 0 claims"),
    (replace(a_run(), counters=Counters(retries=1)), "1 retries after 0 failures"),
    (leased(fence=2), "fence 2 after 1 claims"),
    (leased(attempt=2), "the lease is for attempt 2 of 1"),
    (replace(a_run(Status.FAILED), finished_at=None), "failed, finished at None"),
    (replace(a_run(), finished_at=T0), "queued, finished at"),
    (replace(a_run(Status.FAILED), result_json=msgspec.Raw(b"1")), "failed with a result"),
    (replace(leased(), status=Status.FAILED, finished_at=T0), "still leased"),
    (replace(a_run(Status.SUCCEEDED), dispatch_expires_at=T0), "still leased, reserved"),
    (replace(a_run(), awaiting=awaiting()), "queued, awaiting"),
    (replace(a_run(Status.WAITING), awaiting=None, run_at=T0), "waiting, awaiting None"),
]


@pytest.mark.parametrize(("run", "problem"), BROKEN_RUNS, ids=[item[1] for item in BROKEN_RUNS])
def test_a_broken_run_is_reported(run: Run, problem: str) -> None:
    assert any(problem in found for found in check_run(run)), check_run(run)


def test_a_paused_run_is_not_stranded() -> None:
    assert check_run(a_run(Status.PAUSED)) == []


def test_a_run_that_is_not_what_its_history_says_is_reported_by_field() -> None:
    run = replace(a_run(), priority=9, queue="other")

    problems = check_history(run, history())

    assert problems == [
        'queue is "other", its history says "default"',
        "priority is 9, its history says 0",
    ]


def test_neither_a_token_nor_a_python_object_is_told() -> None:
    """Whoever reads an audit must not be able to end a run by it."""
    run = replace(leased(token="forged"), result_json=encode_value(None))

    lease, result = check_history(run, history(Status.RUNNING))

    assert "forged" not in lease
    assert TOKEN not in lease
    assert result == "result_json is null, its history says nothing"


def test_a_history_that_does_not_replay_is_reported() -> None:
    assert check_history(a_run(), [started()]) == [
        f"its history does not replay: run {a_run().id}: run.started cannot be the first event"
    ]
    assert "at least one event" in check_history(a_run(), [])[0]


def test_a_renewal_without_an_event_is_no_difference() -> None:
    events = history(Status.RUNNING)

    assert check_history(leased(renewed_at=after(939), expires_at=after(999)), events) == []
    assert differences(leased(expires_at=after(999)), a_run(Status.RUNNING)) == ["lease"]
    assert differences(leased(expires_at=after(59)), a_run(Status.RUNNING)) == ["lease"]
    assert differences(leased(token="other", expires_at=after(999)), a_run(Status.RUNNING))


def test_attempts_that_do_not_fit_the_counters_are_reported() -> None:
    run = replace(a_run(Status.RUNNING), counters=Counters(claims=2, attempts=2))

    assert "its attempts are not numbered from one without gaps" in check_history(
        run, history(Status.RUNNING)
    )


def test_an_attempt_left_open_by_a_free_run_is_reported() -> None:
    run = replace(a_run(Status.RUNNING), status=Status.QUEUED, lease=None)

    assert "an attempt has not ended" in check_history(run, history(Status.RUNNING))


RUNNING = a_run(Status.RUNNING)


def committed(before: Run, event: Event, now: datetime | None = None) -> CommittedStep:
    return CommittedStep(before, [event], then(before, event), now or event.occurred_at)


LAWFUL = [
    committed(a_run(), lease_claimed()),
    committed(RUNNING, cancellation_requested()),
    committed(RUNNING, lease_heartbeat(at=after(9))),
    committed(RUNNING, succeeded()),
    committed(RUNNING, lease_claimed(at=after(60), token="token-2")),
    committed(RUNNING, delivery_requested(at=after(60))),
]


@pytest.mark.parametrize("step", LAWFUL)
def test_a_lawful_step_has_no_problems(step: CommittedStep) -> None:
    assert check_step(step) == []


def changed(run: Run, **lease: Any) -> Run:
    assert run.lease is not None
    return replace(run, sequence=run.sequence + 1, lease=replace(run.lease, **lease))


BEAT = [lease_heartbeat()]
CLAIM = [lease_claimed(at=after(60), token="token-2")]
BROKEN_STEPS = [
    (
        CommittedStep(a_run(Status.FAILED), [paused()], replace(a_run(), sequence=9), T0),
        "failed was followed by queued",
    ),
    (CommittedStep(a_run(), [paused()], a_run(), T0), "sequence or time went back"),
    (
        CommittedStep(a_run(), [paused()], replace(a_run(), sequence=2, updated_at=after(-1)), T0),
        "sequence or time went back",
    ),
    (committed(RUNNING, CLAIM[0], now=after(59)), "a live lease was taken"),
    (committed(RUNNING, delivery_requested(at=after(60)), after(59)), "a live lease was taken"),
    (
        CommittedStep(RUNNING, BEAT, changed(RUNNING, expires_at=after(59)), T0),
        "a renewal was undone",
    ),
    (
        CommittedStep(RUNNING, CLAIM, changed(RUNNING, token="token-2"), after(60)),
        "the fence did not grow with the claim",
    ),
]


@pytest.mark.parametrize(("step", "problem"), BROKEN_STEPS)
def test_a_broken_step_is_reported(step: CommittedStep, problem: str) -> None:
    assert check_step(step) == [problem]
