"""Why did it not run at nine?"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders import OPERATOR, skipped, then
from perdure.core.lifecycle import Status
from perdure.core.run import Run
from perdure.core.schedule import (
    Misfire,
    Overlap,
    Schedule,
    SkipReason,
    Touch,
    Verdict,
    at,
    decide_delete,
    decide_occurrences,
    decide_pause,
    decide_resume,
    decide_update,
    every,
    explain,
    with_why,
)
from perdure.core.why import Code, Reason, Why
from scheduling import (
    EACH_MINUTE,
    HOUR,
    MINUTE,
    NINE,
    SECOND,
    a_definition,
    a_schedule,
    an_occurrence,
)

SIX = NINE - 3 * HOUR
NOON = NINE + 3 * HOUR


def since_six(**fields: Any) -> Schedule:
    """Made at six, decided up to nine."""
    return replace(a_schedule(SIX, **fields), cursor=NINE)


def skip(reason: str) -> Run:
    run = an_occurrence()
    return then(run, skipped(NINE, run_id=run.id, reason=reason))


def test_it_did_run() -> None:
    run = an_occurrence(Status.SUCCEEDED)
    answer = explain(since_six(), NINE, NOON, [run])

    assert (answer.verdict, answer.run) == (Verdict.HAS_RUN, run)
    assert answer.sentence == (
        f"digest at 2026-03-02T09:00:00Z: it has run {run.id}, which is succeeded."
    )
    assert (answer.previous, answer.following) == (NINE - HOUR, NINE + HOUR)


@pytest.mark.parametrize(
    ("reason", "fields", "words"),
    [
        (SkipReason.MISFIRED, {}, "later than its grace of 0:01:00 allows, and the misfire policy"),
        (SkipReason.OVERLAP, {"overlap": Overlap.SKIP}, "no slot was free (of 1)"),
        (SkipReason.SUPERSEDED, {"overlap": Overlap.REPLACE}, "the overlap policy is replace"),
        (SkipReason.OVER_LIMIT, {"misfire": Misfire.CATCH_UP}, "the newest 100 were caught up"),
        (SkipReason.TOO_OLD, {"catch_up_age": HOUR}, "further back than catch_up_age, 1:00:00"),
        (SkipReason.PAUSED, {}, "the schedule was paused, and the misfire policy is run_once"),
        ("somebody's own words", {}, "it was skipped: somebody's own words"),
    ],
)
def test_it_was_skipped_and_the_policy_says_why(
    reason: str, fields: dict[str, Any], words: str
) -> None:
    run = skip(reason)
    answer = explain(since_six(**fields), NINE, NOON, [run])

    assert (answer.verdict, answer.reason, answer.run) == (Verdict.SKIPPED, reason, run)
    assert words in answer.sentence


def test_a_skip_that_was_made_up_for_by_hand_has_run() -> None:
    run = skip("misfired")
    again = an_occurrence(Status.RUNNING, NINE, reason="backfill")

    answer = explain(since_six(), NINE, NOON, [run, again])

    assert (answer.verdict, answer.run) == (Verdict.HAS_RUN, again)


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


def test_a_pause_that_is_over_is_named() -> None:
    held = decide_pause(a_schedule(SIX), OPERATOR, SIX)
    assert held is not None
    resumed = decide_resume(held, NOON)
    assert resumed is not None

    answer = explain(resumed, NINE, NOON, [skip("paused")])

    assert "paused until 2026-03-02T12:00:00Z, and the misfire policy is" in answer.sentence


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


def test_it_is_still_to_come() -> None:
    assert explain(since_six(), NOON, NINE + MINUTE).verdict is Verdict.STILL_TO_COME


def test_nobody_has_decided_it() -> None:
    answer = explain(since_six(), NINE + HOUR, NOON)

    assert answer.verdict is Verdict.UNDECIDED
    assert "is one running?" in answer.sentence


def test_the_schedule_is_held() -> None:
    plain, held = since_six(), decide_pause(since_six(), OPERATOR, NINE)
    why = replace(plain, paused=Touch(by=OPERATOR, at=NINE, reason="holiday"))
    deleted = decide_delete(plain, OPERATOR, NINE)
    assert held is not None
    assert deleted is not None
    for schedule, words in (
        (held, "is paused since 2026-03-02T09:00:00Z."),
        (why, "is paused since 2026-03-02T09:00:00Z (holiday)."),
        (deleted, "was deleted at 2026-03-02T09:00:00Z."),
        (since_six(enabled=False), "is disabled by its definition."),
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
    assert str(answer).endswith("which is queued. Nothing holds it.")
