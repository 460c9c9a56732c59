"""The runs of a schedule: by its cadence, by hand, and for the past."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from msgspec.structs import replace

from builders import CLIENT, PAYLOAD, RUN_ID, TASK, a_policy
from perdure.core.decide import NewRun, decide_create
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import replay
from perdure.core.run.run import ActorType, SourceType
from perdure.core.schedule import (
    Occurrence,
    SkippedSpan,
    SkipReason,
    backfilled,
    decide_backfill,
    every,
    first_events,
    forgettable_keys,
    is_own_occurrence,
    occurrence_key,
    rfc3339,
    triggered,
    was_recorded,
)
from perdure.errors import InvalidInput
from scheduling import HOUR, MINUTE, NINE, SECOND, a_schedule

PLAIN = NewRun(task=TASK, queue="mail", policy=a_policy(max_attempts=7), task_version=4)
TEN = NINE + HOUR


def a_span(first: datetime, last: datetime) -> SkippedSpan:
    return SkippedSpan(
        schedule_id="digest",
        environment="default",
        first=first,
        last=last,
        count=1,
        reason=SkipReason.MISFIRED,
        recorded_at=last,
    )


def test_an_occurrence_is_keyed_by_its_nominal_time_in_utc() -> None:
    there = NINE.astimezone(timezone(timedelta(hours=-5)))

    assert occurrence_key("digest", there) == "digest:2026-03-02T09:00:00Z"
    assert rfc3339(NINE + timedelta(milliseconds=1500)) == "2026-03-02T09:00:01.500000Z"


def test_an_occurrence_becomes_a_run_of_its_task() -> None:
    occurrence = Occurrence(nominal=TEN, run_at=TEN)
    run = replay(first_events(a_schedule(), occurrence, PLAIN, RUN_ID, TEN + SECOND))

    assert (run.status, run.occurrence_key) == (Status.QUEUED, "digest:2026-03-02T10:00:00Z")
    assert (run.task, run.payload_json, run.queue) == (TASK, PAYLOAD, "mail")
    assert (run.policy.max_attempts, run.task_version) == (7, 4)
    assert (run.source.type, run.source.nominal_time) == (SourceType.SCHEDULE, TEN)
    assert (run.schedule_id, run.created_by.type) == ("digest", ActorType.SCHEDULE)
    assert run.claimable_at == TEN
    assert is_own_occurrence(run)


def test_what_the_schedule_says_goes_before_what_the_task_says() -> None:
    schedule = a_schedule(queue="slow", priority=3, policy=a_policy(max_attempts=1), ttl=HOUR)
    occurrence = Occurrence(nominal=TEN, run_at=TEN)

    run = replay(first_events(schedule, occurrence, PLAIN, RUN_ID, TEN))

    assert (run.queue, run.priority, run.policy.max_attempts) == ("slow", 3, 1)
    assert run.expires_at == TEN + HOUR


def test_an_occurrence_with_jitter_is_scheduled_for_later() -> None:
    occurrence = Occurrence(nominal=TEN, run_at=TEN + MINUTE)

    run = replay(first_events(a_schedule(), occurrence, PLAIN, RUN_ID, TEN))

    assert (run.status, run.run_at) == (Status.SCHEDULED, TEN + MINUTE)
    assert run.source.nominal_time == TEN


def test_a_skipped_occurrence_is_a_run_that_ended_with_its_reason() -> None:
    occurrence = Occurrence(nominal=TEN, run_at=TEN, skipped=SkipReason.OVERLAP)

    run = replay(first_events(a_schedule(), occurrence, PLAIN, RUN_ID, TEN, dispatch=True))

    assert (run.status, run.reason, run.finished_at) == (Status.SKIPPED, "overlap", TEN)
    assert run.occurrence_key == occurrence_key("digest", TEN)


def test_a_run_by_hand_keeps_its_reason_and_leaves_the_cadence_alone() -> None:
    new = triggered(a_schedule(), PLAIN, RUN_ID, "  the report was wrong ")
    run = replay(decide_create(new, RUN_ID, CLIENT, TEN))

    assert run.occurrence_key == f"manual:{RUN_ID}"
    assert (run.source.reason, run.source.nominal_time) == ("the report was wrong", None)
    assert run.schedule_id == "digest"
    assert not is_own_occurrence(run)


@pytest.mark.parametrize("reason", ["", "  \n", None])
def test_a_run_by_hand_needs_a_reason(reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        triggered(a_schedule(), PLAIN, RUN_ID, reason)

    assert caught.value.field == "reason"


def test_a_backfill_finds_the_times_that_have_not_occurred() -> None:
    schedule = a_schedule()

    found = decide_backfill(schedule, NINE - 3 * HOUR, NINE, {NINE - HOUR})

    assert found.times == (NINE - 3 * HOUR, NINE - 2 * HOUR, NINE)
    assert found.rest_after is None


def test_a_backfill_leaves_to_the_cadence_what_it_has_not_decided() -> None:
    found = decide_backfill(a_schedule(), NINE, NINE + 9 * HOUR, set())

    assert found.times == (NINE,)


def test_a_long_backfill_comes_in_pieces() -> None:
    schedule = a_schedule(cadence=every(60))
    start, pieces = NINE - 25 * MINUTE, []
    while True:
        piece = decide_backfill(schedule, start, NINE, {NINE - MINUTE}, limit=10)
        pieces.append(piece.times)
        if piece.rest_after is None:
            break
        start = piece.rest_after + SECOND

    assert [len(times) for times in pieces] == [10, 10, 5]
    assert len({time for times in pieces for time in times}) == 25


def test_a_backfill_runs_forwards() -> None:
    with pytest.raises(InvalidInput) as caught:
        decide_backfill(a_schedule(), NINE, NINE - HOUR, set())

    assert caught.value.field == "end"


def test_a_time_never_recorded_is_backfilled_under_its_own_key() -> None:
    new = backfilled(a_schedule(), PLAIN, RUN_ID, NINE, "new report", recorded=False)
    run = replay(decide_create(new, RUN_ID, CLIENT, TEN))

    assert run.occurrence_key == occurrence_key("digest", NINE)
    assert (run.source.nominal_time, run.source.reason) == (NINE, "new report")
    assert not is_own_occurrence(run)


def test_a_time_recorded_as_skipped_is_backfilled_under_a_key_of_its_own() -> None:
    new = backfilled(a_schedule(), PLAIN, RUN_ID, NINE, "after the outage", recorded=True)

    assert new.occurrence_key == f"manual:{RUN_ID}"
    assert new.idempotency_key == f"backfill:{occurrence_key('digest', NINE)}"
    assert new.source.nominal_time == NINE


def test_a_skip_is_on_record_singly_or_in_a_span() -> None:
    span = a_span(NINE, NINE + 5 * HOUR)

    assert was_recorded(NINE, {NINE}, ())
    assert was_recorded(NINE + HOUR, (), [span])
    assert not was_recorded(NINE - HOUR, {NINE}, [span])


def test_a_backfill_leaves_alone_what_may_have_run_and_been_forgotten() -> None:
    schedule = replace(a_schedule(), cursor=NINE + 9 * HOUR, forgotten_until=NINE + 6 * HOUR)
    skipped, span = NINE + 2 * HOUR, a_span(NINE + 4 * HOUR, NINE + 5 * HOUR)

    found = decide_backfill(
        schedule, NINE - HOUR, NINE + 12 * HOUR, {NINE + 8 * HOUR}, {skipped}, [span]
    )

    before, on_record, later = (-1, 0), (2, 4, 5), (7, 9)
    assert found.times == tuple(NINE + n * HOUR for n in (*before, *on_record, *later))


def test_forgetting_what_lies_before_the_schedule_keeps_nothing_from_a_backfill() -> None:
    schedule = replace(a_schedule(), cursor=NINE + HOUR, forgotten_until=NINE - 5 * HOUR)

    found = decide_backfill(schedule, NINE - 6 * HOUR, NINE + HOUR, {NINE - 5 * HOUR})

    assert len(found.times) == 7


def test_of_a_pruned_run_go_the_keys_that_nobody_can_want() -> None:
    schedule = replace(a_schedule(), cursor=TEN)
    own, by_hand = occurrence_key("digest", TEN), f"manual:{RUN_ID}"

    assert forgettable_keys(RUN_ID, TEN, schedule) == [by_hand, own]
    assert forgettable_keys(RUN_ID, NINE, schedule) == [by_hand]  # a backfill's, from before
    assert forgettable_keys(RUN_ID, TEN + HOUR, schedule) == [by_hand]  # not behind its cursor
    assert forgettable_keys(RUN_ID, None, schedule) == [by_hand]
    assert forgettable_keys(RUN_ID, TEN, None) == [by_hand]
