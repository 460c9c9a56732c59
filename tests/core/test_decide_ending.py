"""Which event records each way in which an attempt can end."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from builders import TOKEN, a_failure, a_run, after, as_id, awaiting
from perdure.core.decide.ending import (
    Ending,
    GaveBack,
    HandedOver,
    Interrupted,
    Raised,
    Returned,
    Stopped,
    Unserved,
    decide_ending,
)
from perdure.core.decide.lease import NO_EVIDENCE
from perdure.core.run import events as e
from perdure.core.run.lifecycle import Status

RUNNING, CANCELLING = Status.RUNNING, Status.CANCELLATION_REQUESTED


@pytest.mark.parametrize(
    ("status", "ending", "expected"),
    [
        (RUNNING, Returned(msgspec.Raw(b"1")), e.RunSucceeded),
        (RUNNING, Raised(a_failure()), e.RunRetryScheduled),
        (RUNNING, GaveBack(timedelta(seconds=5)), e.RunReleased),
        (RUNNING, GaveBack(until=after(60)), e.RunReleased),
        (RUNNING, GaveBack(awaiting=awaiting()), e.RunReleased),
        (RUNNING, Interrupted(a_failure()), e.RunReleased),
        (RUNNING, Unserved(a_failure()), e.RunReleased),
        (RUNNING, Stopped(), e.RunReleased),
        (RUNNING, HandedOver(), e.RunReleased),
        (CANCELLING, Stopped(), e.RunCancelled),
    ],
    ids=as_id,
)
def test_an_ending_is_recorded_as_this_event(
    status: Status, ending: Ending, expected: type[e.Event]
) -> None:
    [event] = decide_ending(a_run(status), TOKEN, ending, after(10), lambda: 0.0, NO_EVIDENCE)

    assert type(event) is expected


def test_a_delay_begins_when_the_attempt_ends() -> None:
    ending = GaveBack(timedelta(seconds=5))

    [event] = decide_ending(a_run(RUNNING), TOKEN, ending, after(10), lambda: 0.0, NO_EVIDENCE)

    assert isinstance(event, e.RunReleased)
    assert event.resume_at == after(15)
