"""Why did it not run at nine?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from builders import OPERATOR, skipped, then
from perdure.core.explain.why import Code, Reason, Why
from perdure.core.run.events import RunSkipped
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.schedule import (
    Cadence,
    Evidence,
    Explanation,
    Misfire,
    Overlap,
    Pause,
    Schedule,
    SkipReason,
    Touch,
    Verdict,
    at,
    cron,
    decide_occurrences,
    decide_pause,
    decide_update,
    every,
    explain,
    explain_missing,
    meant,
    with_why,
)
from perdure.core.schedule.wall_time import stands_for
from scheduling import (
    EACH_MINUTE,
    HOUR,
    MINUTE,
    NINE,
    SECOND,
    a_definition,
    a_schedule,
    an_occurrence,
    deleted,
)

SIX = NINE - 3 * HOUR
NOON = NINE + 3 * HOUR


def since_six(**fields: Any) -> Schedule:
    """Made at six, decided up to nine."""
    return replace(a_schedule(SIX, **fields), cursor=NINE)


def skip(reason: str, evidence: Evidence | None = None) -> tuple[Run, RunSkipped]:
    run = an_occurrence()
    event = skipped(NINE + HOUR, run_id=run.id, reason=reason, evidence=evidence)
    return then(run, event), event


def told(schedule: Schedule, reason: str, evidence: Evidence | None = None) -> Explanation:
    run, event = skip(reason, evidence)
    return explain(schedule, NINE, NOON, [run], (), {run.id: event})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.SUCCEEDED, "it ran as {}, which succeeded"),
        (Status.FAILED, "it ran as {}, which failed"),
        (Status.DEAD_LETTERED, "it ran as {}, which became a dead letter"),
        (Status.CANCELLED, "its run {} was cancelled before it had begun"),
        (Status.EXPIRED, "its run {} expired before it had begun"),
        (Status.QUEUED, "its run {} has not begun and is queued"),
        (Status.RUNNING, "its run {} has begun and is running"),
        (Status.RETRYING, "its run {} has begun and is retrying"),
    ],
)
def test_it_has_a_run_and_how_that_is(status: Status, words: str) -> None:
    run = an_occurrence(status)
    answer = explain(since_six(), NINE, NOON, [run])

    assert (answer.verdict, answer.run) == (Verdict.HAS_RUN, run)
    assert answer.sentence == f"digest at 2026-03-02T09:00:00Z: {words.format(run.id)}."
    assert (answer.previous, answer.following) == (NINE - HOUR, NINE + HOUR)


def test_it_was_skipped_and_the_policy_of_that_day_says_why() -> None:
    evidence = Evidence(misfire="skip", misfire_grace=MINUTE)
    changed = since_six(misfire=Misfire.CATCH_UP, misfire_grace=HOUR)

    answer = told(changed, SkipReason.MISFIRED, evidence)

    assert (answer.verdict, answer.reason, answer.evidence) == (
        *(Verdict.SKIPPED, SkipReason.MISFIRED),
        evidence,
    )
    assert answer.sentence == (
        "digest at 2026-03-02T09:00:00Z: it was decided at 2026-03-02T10:00:00Z, later than its "
        "grace of 1 min allows, and the misfire policy was skip."
    )


@pytest.mark.parametrize("reason", [*SkipReason, "somebody's own words"])
def test_what_was_not_kept_is_left_unsaid(reason: str) -> None:
    run, _ = skip(reason)

    answer = explain(since_six(overlap=Overlap.REPLACE), NINE, NOON, [run])

    assert (answer.verdict, answer.reason, answer.evidence) == (Verdict.SKIPPED, reason, None)
    assert "policy" not in answer.sentence


def test_a_skip_that_was_made_up_for_by_hand_has_run() -> None:
    run, _ = skip("misfired")
    again = an_occurrence(Status.RUNNING, NINE, reason="backfill")

    answer = explain(since_six(), NINE, NOON, [run, again])

    assert (answer.verdict, answer.run) == (Verdict.HAS_RUN, again)
    assert f"its run {again.id} (made by api: backfill) has begun" in answer.sentence


def test_it_lies_in_a_span_of_skips() -> None:
    schedule = a_schedule(SIX, cadence=EACH_MINUTE, misfire=Misfire.SKIP)
    plan = decide_occurrences(schedule, SIX + 500 * MINUTE)
    assert plan is not None
    decided = replace(schedule, cursor=plan.cursor)

    answer = explain(decided, NINE, NOON, (), plan.spans)

    assert (answer.verdict, answer.span) == (Verdict.SKIPPED, plan.spans[0])
    assert "(one of 398 until" in answer.sentence
    between = explain(decided, NINE + SECOND, NOON, (), plan.spans)
    assert between.verdict is Verdict.NOT_AN_OCCURRENCE


def test_a_span_of_a_former_cadence_is_believed() -> None:
    held = decide_pause(a_schedule(SIX), OPERATOR, SIX)
    assert held is not None
    change = decide_update(held, a_definition(cadence=every(hours=7)), NOON)
    assert change.plan is not None
    assert change.schedule is not None

    answer = explain(change.schedule, NINE, NOON, (), change.plan.spans)

    assert (answer.verdict, answer.reason) == (Verdict.SKIPPED, SkipReason.CHANGED)
    outside = explain(change.schedule, SIX - HOUR, NOON, (), change.plan.spans)
    assert outside.verdict is Verdict.BEFORE_ITS_TIME
    assert "holds only since 2026-03-02T12:00:00Z" in outside.sentence


def test_the_pause_that_covered_it_is_named_whatever_came_later() -> None:
    pause = Pause(since=SIX, until=NINE + HOUR, by=OPERATOR, reason="holiday")
    later = Pause(since=NINE + HOUR, until=NOON, by=OPERATOR, reason="strike")

    answer = told(
        replace(since_six(), pauses=(later,)), "paused", Evidence(misfire="skip", pause=pause)
    )

    assert answer.sentence.endswith(
        ": the schedule was paused from 2026-03-02T06:00:00Z until 2026-03-02T10:00:00Z "
        "by grace (holiday), and the misfire policy was skip."
    )


def test_it_was_never_meant_to_run_then() -> None:
    answer = explain(since_six(), NINE + MINUTE, NOON)

    assert answer.verdict is Verdict.NOT_AN_OCCURRENCE
    assert "the last before it is 2026-03-02T09:00:00Z, the next" in answer.sentence
    once = explain(a_schedule(SIX, cadence=at(NOON)), NINE, NOON)
    assert "the last before it is never" in once.sentence


def test_the_schedule_did_not_exist() -> None:
    assert explain(a_schedule(NOON), NINE, NOON).verdict is Verdict.BEFORE_ITS_TIME


def test_its_record_is_gone() -> None:
    assert explain(since_six(), NINE, NOON).verdict is Verdict.NOT_ON_RECORD


def test_what_an_earlier_cadence_decided_may_be_gone_too() -> None:
    changed = replace(since_six(), cadence_since=NOON, forgotten_until=NINE)

    gone, never = (explain(changed, time, NOON) for time in (NINE, NINE + HOUR))

    assert (gone.verdict, never.verdict) == (Verdict.NOT_ON_RECORD, Verdict.BEFORE_ITS_TIME)
    assert "what was decided by an earlier one is no longer on record" in gone.sentence


def test_it_is_still_to_come() -> None:
    assert explain(since_six(), NOON, NINE + MINUTE).verdict is Verdict.STILL_TO_COME


def test_nobody_has_decided_it() -> None:
    answer = explain(since_six(), NINE + HOUR, NOON)

    assert answer.verdict is Verdict.UNDECIDED
    assert answer.sentence.endswith("is one running?")


def test_the_schedule_is_held() -> None:
    held = decide_pause(since_six(), OPERATOR, NINE, "holiday")
    by_hand = Touch(by=OPERATOR, at=SIX, reason="too loud")
    disabled = replace(since_six(enabled=False), touched=by_hand)
    assert held is not None
    for schedule, words in (
        (held, "is paused since 2026-03-02T09:00:00Z by grace (holiday)."),
        (deleted(since_six()), "was deleted at 2026-03-02T09:00:00Z by grace."),
        (since_six(enabled=False), "the schedule is disabled."),
        (
            disabled,
            "is disabled; it was last changed at 2026-03-02T06:00:00Z by grace (too loud).",
        ),
    ):
        answer = explain(schedule, NINE + HOUR, NOON)
        assert answer.verdict is Verdict.HELD
        assert answer.sentence.endswith(words)


def test_runs_of_other_times_say_nothing() -> None:
    other = an_occurrence(Status.SUCCEEDED, NINE - HOUR)

    assert explain(since_six(), NINE, NOON, [other]).verdict is Verdict.NOT_ON_RECORD


def test_a_run_that_has_not_ended_may_tell_what_keeps_it() -> None:
    run = an_occurrence(Status.QUEUED, NINE)
    reason = Reason(code=Code.NEXT, sentence="Nothing holds it.")
    why = Why(run.id, run.status, NINE, (reason,))

    answer = with_why(explain(a_schedule(NINE - HOUR), NINE, NINE, [run]), why)

    assert answer.why == why
    assert str(answer) == answer.sentence
    assert str(answer).endswith("has not begun and is queued. Nothing holds it.")


BERLIN = ZoneInfo("Europe/Berlin")
GAP_NIGHT = datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)
"""Clocks were turned from two to three."""
AT_THREE = datetime(2026, 3, 29, 1, tzinfo=UTC)


def in_berlin(expression: str = "30 2 * * *", **fields: Any) -> Schedule:
    return a_schedule(SIX, cadence=cron(expression, tz="Europe/Berlin", **fields))


def test_a_time_that_clocks_jumped_over_is_asked_for_when_it_fired_instead() -> None:
    schedule = in_berlin()

    asked = meant(schedule.cadence, GAP_NIGHT)
    answer = explain(schedule, asked.instant, NINE)

    assert asked == (AT_THREE, None)
    assert answer.sentence == (
        "digest at 2026-03-29 03:00 Europe/Berlin (2026-03-29T01:00:00Z), for 02:30, which did "
        "not exist that night (clocks were turned from 02:00 to 03:00): it is still to come."
    )


@pytest.mark.parametrize(
    ("schedule", "because"),
    [
        (in_berlin(gap="skip"), "gap is skip"),
        (in_berlin("*/30 2 * * *"), "*/30 2 * * * follows elapsed time"),
    ],
)
def test_a_time_that_clocks_jumped_over_may_not_be_made_up_for(
    schedule: Schedule, because: str
) -> None:
    instant, missing = meant(schedule.cadence, GAP_NIGHT)
    assert missing is not None

    answer = explain_missing(schedule, instant, missing)

    assert answer.verdict is Verdict.NOT_AN_OCCURRENCE
    assert answer.sentence.startswith(
        "digest: 02:30 did not exist that night (clocks were turned from 02:00 to 03:00), and "
        f"{because}: it has no time then; the last before it is 2026-03-28 02:30 Europe/Berlin"
    )


@pytest.mark.parametrize(
    ("cadence", "at"),
    [
        (in_berlin().cadence, GAP_NIGHT.replace(minute=15)),  # none of its times
        (in_berlin().cadence, GAP_NIGHT.replace(day=28)),
        (in_berlin().cadence, GAP_NIGHT.replace(month=10, day=25)),  # comes twice
        (in_berlin().cadence, GAP_NIGHT.replace(tzinfo=ZoneInfo("Europe/Paris"))),
        (in_berlin().cadence, GAP_NIGHT.astimezone(UTC)),
        (every(60), GAP_NIGHT),
    ],
)
def test_any_other_time_is_the_instant_that_it_is(cadence: Cadence, at: datetime) -> None:
    assert meant(cadence, at) == (at.astimezone(UTC), None)


def test_only_a_time_after_a_jump_stands_for_another() -> None:
    for cadence, time in (
        (every(60), AT_THREE),
        (in_berlin().cadence, AT_THREE + timedelta(days=1)),
        (in_berlin("0 4 * * *").cadence, AT_THREE + HOUR),
        (in_berlin("0 3 * * *").cadence, AT_THREE),
    ):
        assert stands_for(cadence, time) is None
