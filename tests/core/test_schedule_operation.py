"""Changing schedules: only what comes later changes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from builders import OPERATOR
from perdure.core.run.run import SYSTEM
from perdure.core.schedule import (
    Cadence,
    DefinedBy,
    Misfire,
    Pause,
    Schedule,
    SkipReason,
    Touch,
    at,
    check_ahead,
    cron,
    decide_delete,
    decide_occurrences,
    decide_pause,
    decide_resume,
    decide_update,
    definition_hash,
    every,
    new_schedule,
)
from perdure.core.schedule.change import MOST_PAUSES
from perdure.errors import InvalidInput
from scheduling import EACH_SECOND, HOUR, MINUTE, NINE, SECOND, a_definition, a_schedule, deleted

LATER = NINE + 3 * HOUR + 2 * MINUTE
BY_HAND = Touch(by=OPERATOR, at=LATER, reason="too often")
HALF_HOURLY = every(minutes=30)


def paused(schedule: Schedule) -> Schedule:
    held = decide_pause(schedule, OPERATOR, NINE + MINUTE, "holiday")
    assert held is not None
    return held


def test_a_new_schedule_begins_now() -> None:
    schedule = new_schedule(a_definition(), NINE, environment="test", defined_by=DefinedBy.CODE)

    assert (schedule.cursor, schedule.created_at, schedule.version) == (NINE, NINE, 1)
    assert schedule.definition_hash == definition_hash(a_definition())
    assert schedule.environment == "test"


def test_a_new_schedule_is_checked() -> None:
    with pytest.raises(InvalidInput):
        new_schedule(a_definition(id="a:b"), NINE)


def test_what_was_due_before_a_change_is_decided_by_the_old_definition() -> None:
    change = decide_update(a_schedule(), a_definition(cadence=HALF_HOURLY), LATER, touch=BY_HAND)

    assert change.plan is not None
    assert [one.nominal for one in change.plan.occurrences] == [NINE + n * HOUR for n in (1, 2, 3)]
    assert change.schedule is not None
    assert (change.schedule.cursor, change.schedule.cadence_since) == (LATER, LATER)
    assert (change.schedule.version, change.schedule.touched) == (2, BY_HAND)
    assert change.schedule.next_at == NINE + 3 * HOUR + 30 * MINUTE


def test_too_much_to_decide_comes_first() -> None:
    schedule = a_schedule(cadence=EACH_SECOND, misfire=Misfire.CATCH_UP, catch_up_limit=5000)

    change = decide_update(schedule, a_definition(), LATER)

    assert change.plan is not None
    assert change.plan.more
    assert change.schedule is None


def test_an_operators_change_leaves_the_hash_of_the_code_alone() -> None:
    schedule = new_schedule(a_definition(), NINE, defined_by=DefinedBy.CODE)

    change = decide_update(schedule, a_definition(max_concurrency=2), NINE, touch=BY_HAND)

    assert change.plan is None
    assert change.schedule is not None
    assert change.schedule.definition_hash == schedule.definition_hash
    assert change.schedule.defined_by is DefinedBy.CODE
    assert change.schedule.cadence_since == NINE


def test_a_change_by_code_or_manifest_takes_its_hash_and_ends_an_operators() -> None:
    touched = replace(a_schedule(), touched=BY_HAND)
    definition = a_definition(max_concurrency=2)

    change = decide_update(
        touched, definition, NINE, defined_by=DefinedBy.MANIFEST, definition_version=3
    )

    assert change.schedule is not None
    assert change.schedule.touched is None
    assert change.schedule.definition_hash == definition_hash(definition)
    assert (change.schedule.defined_by, change.schedule.definition_version) == ("manifest", 3)


def test_an_id_is_for_ever() -> None:
    with pytest.raises(InvalidInput) as caught:
        decide_update(a_schedule(), a_definition(id="other"), NINE)

    assert caught.value.field == "name"


def test_a_paused_schedule_keeps_its_missed_times_through_a_change_of_policy() -> None:
    change = decide_update(
        paused(a_schedule()), a_definition(misfire=Misfire.SKIP), LATER, touch=BY_HAND
    )

    assert change.plan is None
    assert change.schedule is not None
    assert (change.schedule.cursor, change.schedule.cadence_since) == (NINE, NINE)
    assert change.schedule.paused is not None


def test_a_paused_schedule_writes_its_missed_times_down_when_its_cadence_changes() -> None:
    change = decide_update(
        paused(a_schedule()), a_definition(cadence=HALF_HOURLY), LATER, touch=BY_HAND
    )

    assert change.plan is not None
    (span,) = change.plan.spans
    assert (span.count, span.reason, change.plan.occurrences) == (3, SkipReason.CHANGED, ())
    assert (span.first, span.last) == (NINE + HOUR, NINE + 3 * HOUR)
    assert span.evidence is not None
    assert span.evidence.touch == BY_HAND
    assert span.evidence.pause == Pause(
        since=NINE + MINUTE, until=LATER, by=OPERATOR, reason="holiday"
    )
    assert change.schedule is not None
    assert change.schedule.cursor == change.plan.cursor == LATER


def test_with_no_missed_time_there_is_nothing_to_write_down() -> None:
    soon = NINE + 5 * MINUTE
    change = decide_update(paused(a_schedule()), a_definition(cadence=HALF_HOURLY), soon)
    at_once = decide_update(paused(a_schedule()), a_definition(cadence=HALF_HOURLY), NINE)

    assert (change.plan, at_once.plan) == (None, None)
    assert change.schedule is not None
    assert change.schedule.cursor == soon


def test_time_while_disabled_is_not_missed_time() -> None:
    change = decide_update(a_schedule(enabled=False), a_definition(), LATER)

    assert change.plan is not None
    (span,) = change.plan.spans
    assert (span.reason, span.count, change.plan.occurrences) == (SkipReason.DISABLED, 3, ())
    assert change.schedule is not None
    assert (change.schedule.cursor, change.schedule.cadence_since) == (LATER, LATER)


def test_a_deleted_schedule_that_is_defined_again_begins_anew() -> None:
    gone = deleted(paused(a_schedule()), NINE + MINUTE)

    change = decide_update(gone, a_definition(), LATER)

    assert change.plan is None
    assert change.schedule is not None
    assert (change.schedule.deleted, change.schedule.cursor) == (None, LATER)


def test_to_pause_to_resume_and_to_delete_twice_changes_nothing() -> None:
    held = paused(a_schedule())

    assert decide_pause(held, OPERATOR, LATER) is None
    assert decide_pause(held, OPERATOR, LATER, "holiday") is None
    assert decide_resume(a_schedule(), LATER) is None
    assert decide_delete(deleted(held), OPERATOR, LATER) is None


def test_a_pause_is_remembered_when_it_is_over() -> None:
    resumed = decide_resume(paused(a_schedule()), LATER)

    assert resumed is not None
    (pause,) = resumed.pauses
    assert (pause.since, pause.until, pause.reason) == (NINE + MINUTE, LATER, "holiday")
    assert (resumed.cursor, resumed.version) == (NINE, 3)


def test_a_pause_whose_times_are_decided_is_forgotten_and_of_very_many_the_last_are_kept() -> None:
    schedule = a_schedule()
    for minute in range(2 * MOST_PAUSES):
        held = decide_pause(schedule, OPERATOR, NINE + minute * MINUTE, f"reason {minute}")
        assert held is not None
        schedule = decide_resume(held, NINE + (minute + 1) * MINUTE) or schedule

    assert len(schedule.pauses) == MOST_PAUSES
    assert schedule.pauses[-1].reason == f"reason {2 * MOST_PAUSES - 1}"
    held = decide_pause(replace(schedule, cursor=LATER), OPERATOR, LATER)
    assert held is not None
    resumed = decide_resume(held, LATER + HOUR)
    assert resumed is not None
    assert [pause.reason for pause in resumed.pauses] == [None]


def test_to_pause_for_another_reason_ends_one_pause_and_begins_another() -> None:
    again = decide_pause(paused(a_schedule()), SYSTEM, LATER, "strike")

    assert again is not None
    assert again.paused == Touch(by=SYSTEM, at=LATER, reason="strike")
    (pause,) = again.pauses
    assert (pause.since, pause.until, pause.by, pause.reason) == (
        *(NINE + MINUTE, LATER),
        *(OPERATOR, "holiday"),
    )


def test_no_resume_enables_a_schedule() -> None:
    with pytest.raises(InvalidInput, match="is disabled"):
        decide_resume(a_schedule(enabled=False), LATER)


def test_a_change_while_an_occurrence_is_active_stops_only_what_the_policy_stops() -> None:
    """Editing decides with the runs there are, and forbids nothing that runs."""
    schedule = a_schedule()
    change = decide_update(schedule, a_definition(max_concurrency=2), NINE + HOUR + SECOND)

    assert change.plan == decide_occurrences(schedule, NINE + HOUR + SECOND)


def test_it_is_kept_who_defined_a_schedule_last() -> None:
    made = new_schedule(a_definition(), NINE, by=OPERATOR)

    again = decide_update(made, a_definition(priority=1), LATER, by=SYSTEM).schedule
    by_hand = decide_update(made, a_definition(priority=1), LATER, touch=BY_HAND).schedule

    assert made.defined == Touch(by=OPERATOR, at=NINE)
    assert again is not None
    assert again.defined == Touch(by=SYSTEM, at=LATER)
    assert by_hand is not None
    assert by_hand.defined == made.defined


def test_times_that_were_due_are_decided_before_a_deletion() -> None:
    change = decide_delete(a_schedule(), OPERATOR, LATER, reason="not needed")

    assert change is not None
    assert change.plan == decide_occurrences(a_schedule(), LATER)
    assert change.schedule is not None
    assert change.schedule.deleted == Touch(by=OPERATOR, at=LATER, reason="not needed")
    assert (change.schedule.cursor, change.schedule.version) == (LATER, 2)


def test_too_much_is_decided_before_a_deletion_too() -> None:
    schedule = a_schedule(cadence=EACH_SECOND, misfire=Misfire.CATCH_UP, catch_up_limit=5000)

    change = decide_delete(schedule, OPERATOR, LATER)

    assert change is not None
    assert change.plan is not None
    assert (change.plan.more, change.schedule) == (True, None)


@pytest.mark.parametrize("is_known", [True, False])
def test_times_that_nobody_may_decide_are_written_down_when_it_is_deleted(is_known: bool) -> None:
    schedule = paused(a_schedule()) if is_known else a_schedule()

    change = decide_delete(schedule, OPERATOR, LATER, is_known=is_known)

    assert change is not None
    assert change.plan is not None
    (span,) = change.plan.spans
    assert (span.reason, span.count, change.plan.cursor) == (SkipReason.DELETED, 3, LATER)
    assert span.evidence is not None
    assert span.evidence.touch == Touch(by=OPERATOR, at=LATER)
    assert (span.evidence.pause is not None) is is_known
    assert span.evidence.unknown_task == (None if is_known else schedule.definition.task)


def test_the_missed_times_of_an_unknown_task_wait_for_the_definition_that_comes() -> None:
    same = decide_update(a_schedule(), a_definition(priority=1), LATER, is_known=False)
    other = decide_update(a_schedule(), a_definition(cadence=HALF_HOURLY), LATER, is_known=False)

    assert same.plan is None
    assert same.schedule is not None
    assert same.schedule.cursor == NINE
    assert other.plan is not None
    assert [span.reason for span in other.plan.spans] == [SkipReason.CHANGED]


@pytest.mark.parametrize(
    ("cadence", "problem"),
    [
        (at(NINE), "at: 2026-03-02T09:00:00Z has passed; name an instant to come"),
        (every(HOUR, end=NINE), "end: no time is left until 2026-03-02T09:00:00Z"),
        (cron("0 9 2 3 *", start=NINE.replace(year=2998)), "end: no time is left; name"),
    ],
)
def test_what_is_said_by_hand_must_lie_ahead(cadence: Cadence, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_ahead(cadence, NINE.replace(year=2999))

    assert str(caught.value).startswith(problem)
    check_ahead(EACH_SECOND, NINE)
