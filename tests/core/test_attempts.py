"""Attempts are derived from events; only `run.started` makes one."""

from __future__ import annotations

from typing import Any

import pytest

from builders import (
    WORKER_ID,
    Builder,
    a_failure,
    after,
    cancellation_requested,
    cancelled,
    created,
    dead_lettered,
    delivery_requested,
    failed,
    history,
    lease_claimed,
    lease_heartbeat,
    lease_returned,
    parked,
    paused,
    released,
    resumed,
    retry_scheduled,
    started,
    succeeded,
)
from perdure.core.run.attempts import Attempt, AttemptStatus, derive_attempts
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import replay

UNSTARTED = (
    Status.QUEUED, Status.SCHEDULED, Status.CLAIMED, Status.PAUSED, Status.CANCELLED,
    Status.EXPIRED, Status.SKIPPED,
)  # fmt: skip
BEGUN: list[Event] = [created(), lease_claimed(at=after(1)), started(at=after(2))]


@pytest.mark.parametrize("status", UNSTARTED)
def test_work_that_never_started_has_no_attempt(status: Status) -> None:
    assert derive_attempts(history(status)) == []


def test_a_claim_returned_or_cancelled_before_its_start_is_no_attempt() -> None:
    returned: list[Event] = [created(), lease_claimed(), lease_returned()]
    stopped: list[Event] = [created(), lease_claimed(), cancellation_requested(), cancelled()]

    assert derive_attempts(returned) == derive_attempts(stopped) == []


def test_an_open_attempt_is_running() -> None:
    [attempt] = derive_attempts([*BEGUN, lease_heartbeat(at=after(3))])

    assert attempt == Attempt(
        number=1, worker_id=WORKER_ID, claimed_at=after(1), started_at=after(2)
    )
    assert attempt.status is AttemptStatus.RUNNING


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (succeeded, AttemptStatus.SUCCEEDED),
        (failed, AttemptStatus.FAILED),
        (dead_lettered, AttemptStatus.FAILED),
        (retry_scheduled, AttemptStatus.RETRYING),
        (released, AttemptStatus.RELEASED),
        (parked, AttemptStatus.RELEASED),
    ],
)
def test_an_attempt_ends_as_its_event_says(ending: Builder, status: AttemptStatus) -> None:
    event = ending(at=after(9), execution_trace={"span": 1}, output={"log": "hello"})
    [attempt] = derive_attempts([*BEGUN, event])

    assert (attempt.status, attempt.finished_at) == (status, after(9))
    assert (attempt.execution_trace, attempt.output) == ({"span": 1}, {"log": "hello"})
    assert attempt.failure == getattr(event, "failure", None)


def test_an_attempt_asked_to_stop_is_cancelled() -> None:
    stop = cancelled(at=after(9), output={"log": "bye"})
    [attempt] = derive_attempts([*BEGUN, cancellation_requested(at=after(5)), stop])

    assert (attempt.status, attempt.finished_at) == (AttemptStatus.CANCELLED, after(9))
    assert attempt.output == {"log": "bye"}


@pytest.mark.parametrize("taken", [delivery_requested, lease_claimed])
def test_an_attempt_whose_lease_expired_is_abandoned(taken: Any) -> None:
    events = [*BEGUN, taken(at=after(61))]
    replay(events)

    [attempt] = derive_attempts(events)

    assert (attempt.status, attempt.finished_at) == (AttemptStatus.ABANDONED, after(61))


def test_each_attempt_of_a_long_life_is_told_apart() -> None:
    events = [
        *BEGUN,
        retry_scheduled(at=after(3), failure=a_failure("first")),
        paused(at=after(4)),
        resumed(at=after(5)),
        lease_claimed(at=after(40), worker_id="worker-2"),
        started(at=after(41), attempt=2),
        released(at=after(42), attempt=2),
        lease_claimed(at=after(80)),
        started(at=after(81), attempt=3),
        succeeded(at=after(82), attempt=3),
    ]
    replay(events)

    attempts = derive_attempts(events)

    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert [attempt.status.value for attempt in attempts] == ["retrying", "released", "succeeded"]
    assert [attempt.worker_id for attempt in attempts] == [WORKER_ID, "worker-2", WORKER_ID]
    assert [attempt.claimed_at for attempt in attempts] == [after(1), after(40), after(80)]


def test_a_start_without_a_claim_is_no_attempt() -> None:
    assert derive_attempts([created(), started()]) == []
