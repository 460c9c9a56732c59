"""Why did it not run at nine? The occurrence, the policy and the evidence, as data and as words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial

import msgspec
from msgspec.structs import replace

from perdure.core.explain.reason import Why
from perdure.core.run.events import RunSkipped
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.run.skip import Clock, Evidence, told_skip, told_touch
from perdure.core.schedule.definition import Schedule, SkippedSpan
from perdure.core.schedule.times import TICK, next_time, previous_time
from perdure.core.schedule.wall_time import stands_for, zone_of
from perdure.core.text import clock_in


class Verdict(StrEnum):
    """What became of an instant."""

    HAS_RUN = "has_run"
    SKIPPED = "skipped"
    NOT_AN_OCCURRENCE = "not_an_occurrence"
    BEFORE_ITS_TIME = "before_its_time"
    STILL_TO_COME = "still_to_come"
    UNDECIDED = "undecided"
    HELD = "held"
    NOT_ON_RECORD = "not_on_record"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: what, in a sentence, and the evidence it rests on. `why`: what keeps its run, or
    how that ended."""

    verdict: Verdict
    sentence: str
    instant: datetime
    reason: str | None = None
    evidence: Evidence | None = None
    run: Run | None = None
    span: SkippedSpan | None = None
    previous: datetime | None = None
    following: datetime | None = None
    why: Why | None = None

    def __str__(self) -> str:
        return self.sentence


ENDED = {
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "failed",
    Status.DEAD_LETTERED: "became a dead letter",
    Status.CANCELLED: "was cancelled",
    Status.EXPIRED: "expired",
}


def explain(
    schedule: Schedule,
    instant: datetime,
    now: datetime,
    runs: Sequence[Run] = (),
    spans: Sequence[SkippedSpan] = (),
    skips: Mapping[str, RunSkipped] | None = None,
) -> Explanation:
    """What became of `instant`, from the schedule and what is on record for that time; `skips`
    are the events that skipped these runs, by their ids."""
    on_record = _from_runs(schedule, instant, runs, skips or {})
    on_record = on_record or _from_spans(schedule, instant, spans)
    if on_record is not None:
        return on_record
    if instant <= schedule.cadence_since:
        return _before(schedule, instant)
    if not _is_nominal(schedule, instant):
        return _answer(schedule, instant, Verdict.NOT_AN_OCCURRENCE, _nearest(schedule, instant))
    return _undecided(schedule, instant, now)


def explain_missing(schedule: Schedule, instant: datetime, missing: str) -> Explanation:
    """Of a time on the wall that clocks jumped over, and that nothing stands for."""
    sentence = f"{missing}; {_nearest(schedule, instant).partition('; ')[2]}"
    answer = _answer(schedule, instant, Verdict.NOT_AN_OCCURRENCE, sentence)
    return replace(answer, sentence=f"{schedule.id}: {sentence}.")


def with_why(explanation: Explanation, why: Why) -> Explanation:
    """The answer, and why its run is where it is."""
    sentence = f"{explanation.sentence} {why.sentence}"
    return replace(explanation, sentence=sentence, why=why)


def _from_runs(
    schedule: Schedule, instant: datetime, runs: Sequence[Run], skips: Mapping[str, RunSkipped]
) -> Explanation | None:
    """A run that was really run tells more than the skip it makes up for."""
    found = [run for run in runs if run.source.nominal_time == instant]
    run = next((one for one in found if one.status is not Status.SKIPPED), None)
    if run is not None:
        return _answer(schedule, instant, Verdict.HAS_RUN, _how_it_is(run), run=run)
    if not found:
        return None
    run = found[0]
    event = skips.get(run.id)
    evidence = None if event is None else event.evidence
    because = told_skip(run.reason, evidence, run.updated_at, _clock(schedule))
    answer = _answer(schedule, instant, Verdict.SKIPPED, because, run=run)
    return replace(answer, reason=run.reason, evidence=evidence)


def _how_it_is(run: Run) -> str:
    by = run.created_by.id or f"the {run.created_by.type}"
    by_hand = f" (made by {by}: {run.source.reason})" if run.source.reason else ""
    has_begun = run.counters.attempts > 0
    if run.is_terminal:
        ended = ENDED[run.status]
        if has_begun:
            return f"it ran as {run.id}{by_hand}, which {ended}"
        return f"its run {run.id}{by_hand} {ended} before it had begun"
    has = "has begun" if has_begun else "has not begun"
    return f"its run {run.id}{by_hand} {has} and is {run.status}"


def _from_spans(
    schedule: Schedule, instant: datetime, spans: Sequence[SkippedSpan]
) -> Explanation | None:
    # A span from before a change of cadence is made of times that can no longer be computed.
    if instant > schedule.cadence_since and not _is_nominal(schedule, instant):
        return None
    for span in spans:
        if span.first <= instant <= span.last:
            clock = _clock(schedule)
            because = told_skip(span.reason, span.evidence, span.recorded_at, clock)
            others = f"one of {span.count} until {clock(span.last)}"
            answer = _answer(schedule, instant, Verdict.SKIPPED, f"{because} ({others})")
            return replace(answer, span=span, reason=span.reason, evidence=span.evidence)
    return None


def _before(schedule: Schedule, instant: datetime) -> Explanation:
    begun = schedule.cadence_since.replace(microsecond=0)
    since = f"its cadence holds only since {_clock(schedule)(begun)}"
    if schedule.has_forgotten(instant):
        gone = f"{since}; what was decided by an earlier one is no longer on record"
        return _answer(schedule, instant, Verdict.NOT_ON_RECORD, gone)
    return _answer(schedule, instant, Verdict.BEFORE_ITS_TIME, f"{since}; no run is on record")


def _undecided(schedule: Schedule, instant: datetime, now: datetime) -> Explanation:
    if instant <= schedule.cursor:
        pruned = "it was decided, but what was decided is no longer on record"
        return _answer(schedule, instant, Verdict.NOT_ON_RECORD, pruned)
    held = _held(schedule)
    if held is not None:
        return _answer(schedule, instant, Verdict.HELD, held)
    if instant > now:
        return _answer(schedule, instant, Verdict.STILL_TO_COME, "it is still to come")
    late = "no scheduler has come to it yet; is one running?"
    return _answer(schedule, instant, Verdict.UNDECIDED, late)


def _held(schedule: Schedule) -> str | None:
    clock = _clock(schedule)
    if schedule.deleted is not None:
        return told_touch("the schedule was deleted at", schedule.deleted, clock)
    if not schedule.definition.enabled:
        hand = schedule.touched or schedule.defined
        last = "" if hand is None else f"; {told_touch('it was last changed at', hand, clock)}"
        return f"the schedule is disabled{last}"
    if schedule.paused is not None:
        return told_touch("the schedule is paused since", schedule.paused, clock)
    return None


def _nearest(schedule: Schedule, instant: datetime) -> str:
    around = (previous_time(schedule.cadence, instant), next_time(schedule.cadence, instant))
    before, after = (_clock(schedule)(time) if time else "never" for time in around)
    return f"it is none of its times; the last before it is {before}, the next {after}"


def _is_nominal(schedule: Schedule, instant: datetime) -> bool:
    return next_time(schedule.cadence, instant - TICK) == instant


def _clock(schedule: Schedule) -> Clock:
    return partial(clock_in, zone_of(schedule.cadence))


def _answer(
    schedule: Schedule, instant: datetime, verdict: Verdict, sentence: str, run: Run | None = None
) -> Explanation:
    time, instead = _clock(schedule)(instant), stands_for(schedule.cadence, instant)
    head = f"{schedule.id} at {time}" + (f", for {instead}" if instead else "")
    end = "" if sentence.endswith("?") else "."
    return Explanation(
        verdict=verdict,
        sentence=f"{head}: {sentence}{end}",
        instant=instant,
        run=run,
        previous=previous_time(schedule.cadence, instant),
        following=next_time(schedule.cadence, instant),
    )
