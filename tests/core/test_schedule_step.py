"""A schedule's step: what is stored together, and what storage must refuse."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest
from msgspec.structs import replace

from builders import OPERATOR, TASK, run_id
from perdure.core.decide import NewRun
from perdure.core.limits.admission import LimitScope
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.schedule import (
    Change,
    Making,
    Misfire,
    Overlap,
    Place,
    ScheduleStep,
    SkipReason,
    advancing,
    changing,
    creating,
    decide_occurrences,
    decide_update,
    decode_schedule,
    encode_schedule,
    place_of,
    slots_of,
)
from perdure.errors import UnreadableHistory
from scheduling import EACH_MINUTE, HOUR, MINUTE, NINE, a_definition, a_schedule, an_occurrence

TEN = NINE + HOUR


def making() -> Making:
    numbers = count(1)
    return Making(
        task=NewRun(task=TASK),
        run_id=lambda now: run_id(next(numbers)),
        commit_id=lambda: f"commit-{next(numbers)}",
        now=TEN,
    )


def due() -> ScheduleStep:
    schedule = a_schedule()
    plan = decide_occurrences(schedule, TEN)
    assert plan is not None
    return advancing(schedule, plan, making())


def test_a_new_schedule_comes_with_its_slots() -> None:
    schedule = a_schedule(overlap=Overlap.ALLOW, max_concurrency=4)

    step = creating(schedule, OPERATOR)

    assert (step.expected, step.schedule, step.misplaced) == (None, schedule, None)
    assert step.limit is not None
    assert (step.limit.scope, step.limit.name) == (LimitScope.SCHEDULE, "digest")
    assert step.limit.max_leases == 4
    assert step.limit == slots_of(schedule, OPERATOR, NINE)


def test_a_plan_becomes_runs_and_a_cursor() -> None:
    schedule = a_schedule()
    step = due()

    assert step.expected == place_of(schedule) == Place(1, NINE)
    assert step.schedule == replace(schedule, cursor=TEN)
    [commit] = step.commits
    assert (commit.expected_sequence, commit.run.source.nominal_time) == (0, TEN)
    assert (step.limit, step.misplaced) == (None, None)


def test_what_is_displaced_comes_along() -> None:
    schedule = a_schedule(overlap=Overlap.REPLACE)
    waiting = an_occurrence(Status.QUEUED, NINE - HOUR)
    active = an_occurrence(Status.RUNNING, NINE)
    plan = decide_occurrences(schedule, TEN, [active, waiting])
    assert plan is not None

    step = advancing(schedule, plan, making())

    superseded, stopped, made = step.commits
    assert (superseded.run.id, superseded.run.status) == (waiting.id, Status.SKIPPED)
    assert superseded.run.reason == SkipReason.SUPERSEDED
    assert [event.type for event in stopped.events] == [EventType.CANCELLATION_REQUESTED]
    assert stopped.run.cancellation is not None
    assert "2026-03-02T10:00:00Z" in (stopped.run.cancellation.reason or "")
    assert made.run.source.nominal_time == TEN
    assert step.misplaced is None


def test_a_change_carries_out_its_plan_and_changes_the_slots() -> None:
    schedule = a_schedule()
    definition = a_definition(overlap=Overlap.ALLOW, max_concurrency=3)
    change = decide_update(schedule, definition, TEN + MINUTE)

    step = changing(schedule, change, making(), OPERATOR)

    assert (step.schedule, step.expected) == (change.schedule, Place(1, NINE))
    assert len(step.commits) == 1
    assert step.limit is not None
    assert step.limit.max_leases == 3
    assert step.misplaced is None


def test_a_change_with_nothing_due_only_changes() -> None:
    schedule = a_schedule()
    change = decide_update(schedule, a_definition(cadence=EACH_MINUTE), NINE)

    step = changing(schedule, change, making(), OPERATOR)

    assert (step.commits, step.spans) == ((), ())
    assert step.schedule.version == 2


def test_a_change_that_is_too_much_at_once_only_advances() -> None:
    schedule = a_schedule()
    plan = decide_occurrences(schedule, TEN)

    step = changing(schedule, Change(plan, None), making(), OPERATOR)

    assert step.schedule == replace(schedule, cursor=TEN)
    assert step.limit is None


def test_a_new_schedule_has_no_occurrences_yet() -> None:
    step = replace(due(), expected=None)

    assert step.misplaced == "it is new, and has occurrences"


def test_a_cursor_may_not_go_back() -> None:
    step = due()
    back = replace(step, schedule=replace(step.schedule, cursor=NINE - HOUR), commits=())

    assert back.misplaced is not None
    assert "would go back from 2026-03-02T09:00:00Z" in back.misplaced


@pytest.mark.parametrize("since", [NINE - HOUR, TEN], ids=["later", "earlier"])
def test_a_time_beyond_the_cursors_may_not_be_decided(since: object) -> None:
    step = due()
    moved = replace(step, expected=Place(1, since))  # type: ignore[arg-type]  # a datetime
    cursor = TEN if since == TEN else NINE

    wrong = replace(moved, schedule=replace(step.schedule, cursor=cursor))

    assert wrong.misplaced == "2026-03-02T10:00:00Z is not between its cursors"


def test_manual_runs_and_older_ones_are_no_times_of_the_step() -> None:
    schedule = a_schedule(overlap=Overlap.QUEUE_LATEST)
    plan = decide_occurrences(schedule, TEN, [an_occurrence(Status.QUEUED, NINE - HOUR)])
    assert plan is not None

    assert advancing(schedule, plan, making()).misplaced is None


def test_a_schedule_survives_being_stored() -> None:
    schedule = a_schedule(tags={"a": "b"}, catch_up_age=timedelta(days=1, microseconds=3))
    place = Place(7, TEN)

    back = decode_schedule("digest", encode_schedule(schedule), place)

    assert back == replace(schedule, version=7, cursor=TEN)


@pytest.mark.parametrize("body", ["{", "{}", '{"definition": {"cadence": {"kind": "lunar"}}}'])
def test_what_this_code_cannot_read_is_said(body: str) -> None:
    with pytest.raises(UnreadableHistory, match="schedule digest"):
        decode_schedule("digest", body, Place(1, NINE))


def test_spans_lie_between_the_cursors_too() -> None:
    schedule = a_schedule(misfire=Misfire.SKIP)
    plan = decide_occurrences(schedule, NINE + 200 * HOUR)
    assert plan is not None
    step = advancing(schedule, plan, making())
    [span] = step.spans

    assert step.misplaced is None
    assert replace(step, spans=(replace(span, first=NINE),)).misplaced == (
        "2026-03-02T09:00:00Z is not between its cursors"
    )
