"""Nothing is prepared for storage that could not be read back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders import CLIENT, OPERATOR, T0, TOKEN, a_failure, a_run, after, awaiting
from perdure.core.decide import (
    decide_cancel,
    decide_failure,
    decide_pause,
    decide_release,
    decide_rerun,
    decide_reschedule,
    decide_resume,
    decide_wake,
)
from perdure.core.json_text import as_it_will_be_read
from perdure.core.run.commit import prepare_commit
from perdure.core.run.effects import DeadLetterStatus, close_dead_letter
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.errors import InvalidInput

ALICE: Any = "alice"
NOBODY: Any = Actor(ActorType.OPERATOR, 5)  # type: ignore[arg-type]  # that is the point
ODD: Any = None


def by_an_operator(actor: Any) -> list[tuple[Run, list[Event]]]:
    queued, running = a_run(), a_run(Status.RUNNING)
    paused, waiting = a_run(Status.PAUSED), a_run(Status.WAITING)
    return [
        (queued, decide_cancel(queued, actor, after(9))),
        (running, decide_cancel(running, actor, after(9))),
        (queued, decide_pause(queued, actor, after(9))),
        (paused, decide_resume(paused, actor, after(9))),
        (queued, decide_reschedule(queued, actor, after(9), priority=3)),
        (waiting, decide_wake(waiting, actor, after(9))),
    ]


@pytest.mark.parametrize("actor", [ALICE, NOBODY, None])
def test_what_an_unreadable_actor_does_is_refused(actor: Any) -> None:
    for run, events in by_an_operator(actor):
        with pytest.raises(InvalidInput, match=r"cannot be kept"):
            prepare_commit(run, events, "commit-1")
    with pytest.raises(InvalidInput, match="dead letter: cannot be kept"):
        close_dead_letter(a_run(Status.DEAD_LETTERED), DeadLetterStatus.DISCARDED, actor, T0)


def test_what_a_readable_actor_does_is_prepared() -> None:
    for run, events in by_an_operator(OPERATOR):
        assert prepare_commit(run, events, "commit-1").events == tuple(events)


@pytest.mark.parametrize("retryable", [None, 1, "yes"])
def test_a_failure_that_cannot_be_read_back_is_refused(retryable: Any) -> None:
    run = a_run(Status.RUNNING)
    odd = replace(a_failure(), retryable=retryable)

    with pytest.raises(InvalidInput, match="retryable"):
        prepare_commit(run, decide_failure(run, TOKEN, after(9), odd), "commit-1")


def test_a_wait_that_cannot_be_read_back_is_refused() -> None:
    run = a_run(Status.RUNNING)
    odd = replace(awaiting(), kind=ODD)

    with pytest.raises(InvalidInput, match="kind"):
        prepare_commit(run, decide_release(run, TOKEN, after(9), awaiting=odd), "commit-1")


@pytest.mark.parametrize("reason", [5, b"why", ["why"]])
def test_a_reason_is_text(reason: Any) -> None:
    ended = a_run(Status.SUCCEEDED)

    with pytest.raises(InvalidInput, match="reason: must be text, not"):
        decide_cancel(a_run(), OPERATOR, after(9), reason)
    with pytest.raises(InvalidInput, match="reason: must be text, not"):
        decide_rerun(ended, ended.id, CLIENT, after(9), reason=reason)


def test_what_is_read_back_is_what_was_written() -> None:
    [event] = decide_cancel(a_run(), OPERATOR, after(9), "enough")

    assert as_it_will_be_read(event, "event") == event


@pytest.mark.parametrize("run_at", ["2026-01-01", 5])
def test_a_time_is_a_datetime(run_at: Any) -> None:
    with pytest.raises(InvalidInput, match="run_at: must be a datetime, not"):
        decide_reschedule(a_run(), OPERATOR, after(9), run_at=run_at)
