"""What a scheduler does about what is due: misfires, overlaps, and bounded work."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import CLIENT, OPERATOR, a_run, lease_claimed, lease_returned, run_id, then
from perdure.core.decide import decide_cancel
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, SourceType
from perdure.core.schedule import (
    Cadence,
    Evidence,
    Misfire,
    Occurrence,
    Overlap,
    Plan,
    Schedule,
    SkippedSpan,
    SkipReason,
    count_times,
    cron,
    decide_occurrences,
    decide_pause,
    decide_resume,
    every,
    is_own_occurrence,
    jittered,
    times_between,
)
from perdure.core.schedule.plan import MOST_PER_STEP, SKIPS_KEPT_SINGLY
from scheduling import (
    EACH_MINUTE,
    EACH_SECOND,
    HOUR,
    HOURLY,
    MINUTE,
    NINE,
    SECOND,
    a_schedule,
    an_occurrence,
    deleted,
)

OUTAGE = 500 * MINUTE


def planned(schedule: Schedule, now: datetime, runs: list[Run] | None = None) -> Plan:
    plan = decide_occurrences(schedule, now, runs or [])
    assert plan is not None
    return plan


def to_run(plan: Plan) -> list[datetime]:
    return [one.nominal for one in plan.occurrences if one.skipped is None]


def skipped(plan: Plan) -> list[tuple[datetime, SkipReason]]:
    return [(one.nominal, one.skipped) for one in plan.occurrences if one.skipped]


def after(schedule: Schedule, plan: Plan) -> Schedule:
    return replace(schedule, cursor=plan.cursor)


def test_before_the_next_nominal_time_there_is_nothing_to_do() -> None:
    assert decide_occurrences(a_schedule(), NINE + HOUR - SECOND) is None


def test_a_clock_that_steps_back_decides_nothing() -> None:
    assert decide_occurrences(a_schedule(), NINE - HOUR) is None


def test_an_occurrence_in_time_is_run_and_the_cursor_stands_on_it() -> None:
    schedule = a_schedule()
    plan = planned(schedule, NINE + HOUR + SECOND)

    assert to_run(plan) == [NINE + HOUR]
    assert (plan.cursor, plan.spans, plan.more) == (NINE + HOUR, (), False)
    assert (plan.expected_version, plan.expected_cursor) == (1, NINE)
    assert decide_occurrences(after(schedule, plan), NINE + HOUR + SECOND) is None


def test_jitter_moves_the_run_and_not_the_nominal_time() -> None:
    cadence = every(HOUR, jitter=600)
    (occurrence,) = planned(a_schedule(cadence=cadence), NINE + HOUR).occurrences

    assert occurrence.nominal == NINE + HOUR
    assert occurrence.run_at == jittered(cadence, "digest", NINE + HOUR) > NINE + HOUR


@pytest.mark.parametrize("misfire", Misfire)
def test_within_its_grace_no_occurrence_is_a_misfire(misfire: Misfire) -> None:
    schedule = a_schedule(cadence=EACH_SECOND, misfire=misfire)

    plan = planned(schedule, NINE + 60 * SECOND)

    assert to_run(plan) == [NINE + n * SECOND for n in range(1, 61)]


def test_skip_runs_none_of_the_late_ones() -> None:
    plan = planned(a_schedule(misfire=Misfire.SKIP), NINE + 3 * HOUR + 2 * MINUTE)

    assert to_run(plan) == []
    assert skipped(plan) == [(NINE + n * HOUR, SkipReason.MISFIRED) for n in (1, 2, 3)]
    assert plan.cursor == NINE + 3 * HOUR


def test_run_once_runs_the_newest_of_the_late_ones() -> None:
    plan = planned(a_schedule(), NINE + 3 * HOUR + 2 * MINUTE)

    assert to_run(plan) == [NINE + 3 * HOUR]
    assert skipped(plan) == [(NINE + n * HOUR, SkipReason.MISFIRED) for n in (1, 2)]


def test_run_once_leaves_it_to_one_that_is_due_in_time() -> None:
    plan = planned(a_schedule(), NINE + 3 * HOUR + SECOND)

    assert to_run(plan) == [NINE + 3 * HOUR]
    assert [time for time, _ in skipped(plan)] == [NINE + HOUR, NINE + 2 * HOUR]


def test_catch_up_runs_every_late_one_in_order() -> None:
    plan = planned(a_schedule(misfire=Misfire.CATCH_UP), NINE + 3 * HOUR + 2 * MINUTE)

    assert to_run(plan) == [NINE + n * HOUR for n in (1, 2, 3)]


def test_catch_up_runs_the_newest_up_to_its_limit() -> None:
    schedule = a_schedule(misfire=Misfire.CATCH_UP, catch_up_limit=2)

    plan = planned(schedule, NINE + 4 * HOUR + 2 * MINUTE)

    assert to_run(plan) == [NINE + 3 * HOUR, NINE + 4 * HOUR]
    assert skipped(plan) == [(NINE + n * HOUR, SkipReason.OVER_LIMIT) for n in (1, 2)]


def test_catch_up_runs_none_that_is_older_than_its_age() -> None:
    schedule = a_schedule(misfire=Misfire.CATCH_UP, catch_up_age=2 * HOUR, catch_up_limit=1)

    plan = planned(schedule, NINE + 4 * HOUR + 2 * MINUTE)

    assert to_run(plan) == [NINE + 4 * HOUR]
    assert skipped(plan) == [
        (NINE + HOUR, SkipReason.TOO_OLD),
        (NINE + 2 * HOUR, SkipReason.TOO_OLD),
        (NINE + 3 * HOUR, SkipReason.OVER_LIMIT),
    ]


@pytest.mark.parametrize(
    ("misfire", "runs", "reason"),
    [
        (Misfire.SKIP, 0, SkipReason.MISFIRED),
        (Misfire.RUN_ONCE, 1, SkipReason.MISFIRED),
        (Misfire.CATCH_UP, 100, SkipReason.OVER_LIMIT),
    ],
)
def test_an_outage_of_five_hundred_ends_in_bounded_rows(
    misfire: Misfire, runs: int, reason: SkipReason
) -> None:
    grace = timedelta(seconds=30)
    schedule = a_schedule(cadence=EACH_MINUTE, misfire=misfire, misfire_grace=grace)
    plan = planned(schedule, NINE + OUTAGE + 40 * SECOND)

    (span,) = plan.spans
    assert len(to_run(plan)) == runs
    assert len(skipped(plan)) == SKIPS_KEPT_SINGLY
    assert span.count == 500 - runs - SKIPS_KEPT_SINGLY
    assert (span.first, span.last) == (NINE + MINUTE, NINE + span.count * MINUTE)
    assert {span.reason} == {why for _, why in skipped(plan)} == {reason}
    assert (span.schedule_id, span.recorded_at) == ("digest", NINE + OUTAGE + 40 * SECOND)
    assert plan.cursor == NINE + OUTAGE


def test_an_outage_of_five_million_is_counted_and_not_written_down() -> None:
    schedule = a_schedule(cadence=EACH_SECOND, misfire_grace=SECOND)
    plan = planned(schedule, NINE + 5_000_000 * SECOND + SECOND / 2)

    assert len(plan.occurrences) == SKIPS_KEPT_SINGLY + 1
    assert sum(span.count for span in plan.spans) == 5_000_000 - SKIPS_KEPT_SINGLY - 1


def test_more_than_one_step_can_write_is_left_to_the_next() -> None:
    schedule = a_schedule(cadence=EACH_SECOND, misfire=Misfire.CATCH_UP, catch_up_limit=2500)
    now = NINE + 5000 * SECOND
    steps = []
    while (plan := decide_occurrences(schedule, now)) is not None:
        steps.append(plan)
        schedule = after(schedule, plan)

    assert [plan.more for plan in steps] == [True, True, False]
    assert max(len(plan.occurrences) for plan in steps) == MOST_PER_STEP
    assert sum(len(to_run(plan)) for plan in steps) == 2500 + 61
    told = sum(len(plan.occurrences) + sum(s.count for s in plan.spans) for plan in steps)
    assert (told, schedule.cursor) == (5000, now)


def test_a_paused_schedule_decides_nothing_until_it_is_resumed() -> None:
    paused = decide_pause(a_schedule(), OPERATOR, NINE + MINUTE, "holiday")
    assert paused is not None
    assert decide_occurrences(paused, NINE + 5 * HOUR) is None

    resumed = decide_resume(paused, NINE + 3 * HOUR + MINUTE)
    assert resumed is not None
    plan = planned(resumed, NINE + 4 * HOUR + 2 * MINUTE)

    assert to_run(plan) == [NINE + 4 * HOUR]
    assert skipped(plan) == [
        (NINE + HOUR, SkipReason.PAUSED),
        (NINE + 2 * HOUR, SkipReason.PAUSED),
        (NINE + 3 * HOUR, SkipReason.PAUSED),
    ]


def test_a_long_pause_within_a_longer_outage_is_told_apart() -> None:
    schedule = a_schedule(cadence=EACH_MINUTE, misfire=Misfire.SKIP)
    paused = decide_pause(schedule, OPERATOR, NINE + 100 * MINUTE)
    assert paused is not None
    resumed = decide_resume(paused, NINE + 300 * MINUTE)
    assert resumed is not None

    plan = planned(resumed, NINE + 1000 * MINUTE)

    assert [(span.reason, span.count) for span in plan.spans] == [
        (SkipReason.MISFIRED, 100),
        (SkipReason.PAUSED, 200),
        (SkipReason.MISFIRED, 598),
    ]
    assert [span.first for span in plan.spans[1:]] == [NINE + 101 * MINUTE, NINE + 301 * MINUTE]


def test_catching_up_after_a_pause_knows_only_its_own_reasons() -> None:
    ten_of_four_hours = {"catch_up_age": 4 * HOUR, "catch_up_limit": 10}
    fields: dict[str, Any] = {"misfire": Misfire.CATCH_UP, **ten_of_four_hours}
    paused = decide_pause(
        a_schedule(cadence=EACH_MINUTE, **fields), OPERATOR, NINE + MINUTE, "holiday"
    )
    assert paused is not None
    resumed = decide_resume(paused, NINE + 599 * MINUTE)
    assert resumed is not None

    plan = planned(resumed, NINE + 600 * MINUTE)

    assert [(span.reason, span.count, bool(paused_by(span))) for span in plan.spans] == [
        (SkipReason.TOO_OLD, 1, False),
        (SkipReason.TOO_OLD, 358, True),
        (SkipReason.OVER_LIMIT, 129, True),
    ]
    assert len(to_run(plan)) == 12


def paused_by(skipped: Occurrence | SkippedSpan) -> str | None:
    """The reason of the pause that is the evidence."""
    assert skipped.evidence is not None
    return None if skipped.evidence.pause is None else skipped.evidence.pause.reason


def twice_paused(cadence: Cadence, misfire: Misfire) -> Schedule:
    """From 100 to 200 minutes after nine for one reason, then to 300 for another; undecided."""
    schedule = a_schedule(cadence=cadence, misfire=misfire)
    for reason, since in (("holiday", 100), ("strike", 200)):
        held = decide_pause(schedule, OPERATOR, NINE + since * MINUTE, reason)
        assert held is not None
        schedule = held
    resumed = decide_resume(schedule, NINE + 300 * MINUTE)
    assert resumed is not None
    return resumed


def test_each_of_several_pauses_is_the_evidence_of_its_own_times() -> None:
    singly = planned(twice_paused(HOURLY, Misfire.SKIP), NINE + 330 * MINUTE)
    many = planned(twice_paused(EACH_MINUTE, Misfire.SKIP), NINE + 1000 * MINUTE)

    assert [(one.skipped, paused_by(one)) for one in singly.occurrences] == [
        (SkipReason.MISFIRED, None),
        (SkipReason.PAUSED, "holiday"),
        (SkipReason.PAUSED, "holiday"),
        (SkipReason.PAUSED, "strike"),
        (SkipReason.PAUSED, "strike"),
    ]
    assert [(paused_by(span), span.count) for span in many.spans] == [
        (None, 100),
        ("holiday", 100),
        ("strike", 100),
        (None, 598),
    ]


def test_a_pause_without_any_time_divides_no_record() -> None:
    schedule = a_schedule(cadence=EACH_MINUTE, misfire=Misfire.SKIP)
    paused = decide_pause(schedule, OPERATOR, NINE + 100 * MINUTE + SECOND)
    assert paused is not None
    resumed = decide_resume(paused, NINE + 100 * MINUTE + 2 * SECOND)
    assert resumed is not None

    plan = planned(resumed, NINE + 1000 * MINUTE)

    assert [(span.count, span.reason) for span in plan.spans] == [(898, SkipReason.MISFIRED)]


def test_the_policy_of_the_day_is_kept_with_what_it_skips() -> None:
    late = NINE + 3 * HOUR + 2 * MINUTE
    (misfired, *_) = planned(a_schedule(), late).occurrences
    (skip, *_) = planned(a_schedule(misfire=Misfire.SKIP), late).occurrences
    up = a_schedule(misfire=Misfire.CATCH_UP, catch_up_limit=1, catch_up_age=2 * HOUR)
    (old, over, _) = planned(up, late).occurrences
    in_time = planned(a_schedule(), NINE + 3 * HOUR)

    assert misfired.evidence == Evidence(
        misfire="run_once", misfire_grace=MINUTE, newer=NINE + 3 * HOUR
    )
    assert skip.evidence == Evidence(misfire="skip", misfire_grace=MINUTE)
    assert old.evidence == Evidence(misfire="catch_up", catch_up_age=2 * HOUR)
    assert over.evidence == Evidence(misfire="catch_up", catch_up_limit=1)
    assert in_time.occurrences[0].evidence == misfired.evidence
    assert in_time.occurrences[-1].evidence is None


def test_a_disabled_schedule_decides_nothing() -> None:
    assert decide_occurrences(a_schedule(enabled=False), NINE + 5 * HOUR) is None


def test_a_deleted_schedule_decides_nothing() -> None:
    gone = deleted(a_schedule())

    assert (gone.next_at, decide_occurrences(gone, NINE + 5 * HOUR)) == (None, None)


RUNNING = an_occurrence(Status.RUNNING)
WAITING = an_occurrence(nominal=NINE + HOUR)
NEWER = NINE + 2 * HOUR


def overlapping(overlap: Overlap, runs: list[Run], **fields: Any) -> Plan:
    schedule = a_schedule(NINE + HOUR, overlap=overlap, **fields)
    return planned(schedule, NEWER + SECOND, runs)


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.FORBID])
def test_allowed_and_forbidden_overlap_make_every_occurrence_and_displace_none(
    overlap: Overlap,
) -> None:
    plan = overlapping(overlap, [RUNNING, WAITING])

    assert to_run(plan) == [NEWER]
    assert (plan.superseded, plan.stopped) == ((), ())


def test_forbidden_overlap_has_one_slot_whatever_else_is_said() -> None:
    forbid = a_schedule(overlap=Overlap.FORBID, max_concurrency=5)
    allow = a_schedule(overlap=Overlap.ALLOW, max_concurrency=5)

    assert (forbid.limit.concurrency, allow.limit.concurrency) == (1, 5)


@pytest.mark.parametrize(
    ("runs", "slots", "is_made"),
    [
        ([], 1, True),
        ([WAITING], 1, True),  # not active before its first claim
        ([RUNNING], 1, False),
        ([an_occurrence(Status.RETRYING)], 1, False),
        ([an_occurrence(Status.WAITING)], 1, False),
        ([RUNNING], 2, True),
        ([RUNNING, an_occurrence(Status.CLAIMED, NINE - HOUR)], 2, False),
    ],
)
def test_skip_writes_it_down_as_skipped_if_every_slot_is_taken(
    runs: list[Run], slots: int, is_made: bool
) -> None:
    plan = overlapping(Overlap.SKIP, runs, max_concurrency=slots)

    assert to_run(plan) == ([NEWER] if is_made else [])
    assert skipped(plan) == ([] if is_made else [(NEWER, SkipReason.OVERLAP)])
    assert (plan.superseded, plan.stopped) == ((), ())


def test_who_held_the_slots_is_kept_with_what_found_none() -> None:
    holders = [an_occurrence(Status.RUNNING, NINE - n * HOUR) for n in range(7)]
    plan = overlapping(Overlap.SKIP, [WAITING, *holders], max_concurrency=7)

    (one,) = plan.occurrences
    named = tuple(run.id for run in holders[:5])
    assert one.evidence == Evidence(overlap="skip", slots=7, held_by=named)
    assert plan.newest is None


def test_queue_latest_supersedes_what_has_not_begun_and_lets_the_active_one_finish() -> None:
    plan = overlapping(Overlap.QUEUE_LATEST, [RUNNING, WAITING])

    assert to_run(plan) == [NEWER]
    assert (plan.superseded, plan.stopped) == ((WAITING,), ())


def test_replace_also_asks_the_active_one_to_stop_with_only_one_slot() -> None:
    plan = overlapping(Overlap.REPLACE, [RUNNING, WAITING])

    assert to_run(plan) == [NEWER]
    assert (plan.superseded, plan.stopped) == ((WAITING,), (RUNNING,))


@pytest.mark.parametrize("status", [Status.RETRYING, Status.WAITING, Status.RELEASED])
def test_replace_ends_an_occurrence_that_holds_its_slot_between_two_attempts(
    status: Status,
) -> None:
    active = an_occurrence(status)
    plan = overlapping(Overlap.REPLACE, [active])

    assert (plan.superseded, plan.stopped) == ((), (active,))
    (event,) = decide_cancel(active, OPERATOR, NEWER)
    assert then(active, event).status is Status.CANCELLED


def test_replace_does_not_ask_twice() -> None:
    asked = an_occurrence(Status.CANCELLATION_REQUESTED)

    assert overlapping(Overlap.REPLACE, [asked]).stopped == ()


def test_replace_with_several_slots_stops_only_as_many_as_need_be_the_oldest_first() -> None:
    runs = [an_occurrence(Status.RUNNING, NINE - n * HOUR) for n in range(3)]

    assert overlapping(Overlap.REPLACE, runs, max_concurrency=4).stopped == ()
    assert overlapping(Overlap.REPLACE, runs, max_concurrency=3).stopped == (runs[2],)
    assert overlapping(Overlap.REPLACE, runs, max_concurrency=2).stopped == (runs[2], runs[1])


def by_hand(status: Status) -> Run:
    return an_occurrence(status, NINE, nominal_time=None, reason="by hand")


def backfilled(status: Status) -> Run:
    return an_occurrence(status, NINE, reason="backfill")


def retried(status: Status) -> Run:
    return an_occurrence(status, NINE, type=SourceType.MANUAL_RETRY, run_id=run_id(7))


@pytest.mark.parametrize("made", [by_hand, backfilled, retried])
@pytest.mark.parametrize("status", [Status.QUEUED, Status.SCHEDULED, Status.RUNNING])
def test_what_people_asked_for_is_neither_superseded_nor_stopped(made: Any, status: Status) -> None:
    run = made(status)
    plan = overlapping(Overlap.REPLACE, [run])

    assert not is_own_occurrence(run)
    assert (to_run(plan), plan.superseded, plan.stopped) == ([NEWER], (), ())


def test_what_was_claimed_or_is_held_by_an_operator_is_not_superseded() -> None:
    claimed = then(WAITING, lease_claimed(NEWER, run_id=WAITING.id))
    returned = then(claimed, lease_returned(NEWER, run_id=WAITING.id))
    paused = an_occurrence(Status.PAUSED, NINE + HOUR)
    assert returned.status is Status.QUEUED

    for run in (claimed, returned, paused):
        assert overlapping(Overlap.QUEUE_LATEST, [run]).superseded == ()


@pytest.mark.parametrize("overlap", [Overlap.QUEUE_LATEST, Overlap.REPLACE])
def test_of_several_made_at_once_only_the_newest_is_to_be_run(overlap: Overlap) -> None:
    schedule = a_schedule(misfire=Misfire.CATCH_UP, overlap=overlap)

    plan = planned(schedule, NINE + 3 * HOUR)

    assert to_run(plan) == [NINE + 3 * HOUR] == [plan.newest]
    assert skipped(plan) == [(NINE + n * HOUR, SkipReason.SUPERSEDED) for n in (1, 2)]
    assert {one.evidence for one in plan.occurrences[:2]} == {
        Evidence(overlap=overlap, newer=NINE + 3 * HOUR)
    }


def test_if_none_of_the_late_ones_is_run_none_is_displaced_either() -> None:
    schedule = a_schedule(NINE + HOUR, misfire=Misfire.SKIP, overlap=Overlap.REPLACE)

    plan = planned(schedule, NEWER + 2 * MINUTE, [RUNNING, WAITING])

    assert skipped(plan) == [(NEWER, SkipReason.MISFIRED)]
    assert (plan.superseded, plan.stopped) == ((), ())


def test_an_ordinary_run_is_nobodys_occurrence() -> None:
    assert not is_own_occurrence(a_run(actor=CLIENT))


# Often enough to exceed every bound of a plan, and seldom enough to check each time of some hours.
OFTEN = cron("*/7 * * * * *")
cadences = st.sampled_from([OFTEN, EACH_MINUTE, HOURLY, every(11), every(hours=5)])
policies = st.fixed_dictionaries(
    {
        "cadence": cadences,
        "misfire": st.sampled_from(Misfire),
        "misfire_grace": st.integers(1, 7200).map(lambda s: timedelta(seconds=s)),
        "catch_up_limit": st.integers(1, 300),
        "catch_up_age": st.none() | st.integers(1, 9000).map(lambda s: timedelta(seconds=s)),
        "overlap": st.sampled_from(Overlap),
    }
)
waits = st.lists(st.integers(0, 15_000), min_size=1, max_size=4)


@given(policies, waits, st.booleans())
def test_every_nominal_time_is_told_exactly_once(
    fields: dict[str, Any], seconds: list[int], has_paused: bool
) -> None:
    schedule, now = a_schedule(**fields), NINE
    singly: Counter[datetime] = Counter()
    spans: list[tuple[datetime, datetime]] = []
    for wait in seconds:
        now += timedelta(seconds=wait)
        if has_paused:
            held = decide_pause(schedule, OPERATOR, now - timedelta(seconds=wait // 2))
            schedule = decide_resume(held or schedule, now) or schedule
        while (plan := decide_occurrences(schedule, now, [RUNNING])) is not None:
            assert len(plan.occurrences) <= MOST_PER_STEP
            singly.update(one.nominal for one in plan.occurrences)
            for span in plan.spans:
                spans.append((span.first, span.last))
                found = count_times(schedule.cadence, span.first - SECOND, span.last)
                assert span.count == found
            schedule = after(schedule, plan)

    assert max(singly.values(), default=1) == 1
    assert all(earlier[1] < later[0] for earlier, later in pairwise(spans))
    for nominal in times_between(schedule.cadence, NINE, now):
        in_spans = sum(first <= nominal <= last for first, last in spans)
        assert singly[nominal] + in_spans == 1
