"""Why did it not run at nine? The occurrence, the policy and the evidence, as data and as words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from perdure.core.lifecycle import Status
from perdure.core.run import Run
from perdure.core.schedule.definition import Schedule, SkippedSpan, SkipReason
from perdure.core.schedule.making import rfc3339
from perdure.core.schedule.times import TICK, next_time, previous_time
from perdure.core.why.reason import Why


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
    """An answer: what, in a sentence, and the evidence it rests on. `why`: of a run that has not
    ended, what keeps it."""

    verdict: Verdict
    sentence: str
    instant: datetime
    reason: str | None = None
    run: Run | None = None
    span: SkippedSpan | None = None
    previous: datetime | None = None
    following: datetime | None = None
    why: Why | None = None

    def __str__(self) -> str:
        return self.sentence


BECAUSE = {
    SkipReason.MISFIRED: "it was decided later than its grace of {grace} allows, "
    "and the misfire policy is {misfire}",
    SkipReason.PAUSED: "the schedule was paused{pause}, and the misfire policy is {misfire}",
    SkipReason.TOO_OLD: "it was missed, and lay further back than catch_up_age, {age}",
    SkipReason.OVER_LIMIT: "it was missed, and the newest {limit} were caught up with instead",
    SkipReason.OVERLAP: "no slot was free (of {slots}) and the overlap policy is {overlap}",
    SkipReason.SUPERSEDED: "a newer occurrence came before it had begun, "
    "and the overlap policy is {overlap}",
    SkipReason.CHANGED: "it was missed while the schedule was paused or its task unknown, "
    "and the cadence changed before that was over",
}


def explain(
    schedule: Schedule,
    instant: datetime,
    now: datetime,
    runs: Sequence[Run] = (),
    spans: Sequence[SkippedSpan] = (),
) -> Explanation:
    """What became of `instant`, from the schedule and what is on record for that time."""
    on_record = _from_runs(schedule, instant, runs) or _from_spans(schedule, instant, spans)
    if on_record is not None:
        return on_record
    if instant <= schedule.cadence_since:
        since = f"its cadence holds only since {rfc3339(schedule.cadence_since)}"
        return _answer(schedule, instant, Verdict.BEFORE_ITS_TIME, f"{since}; no run is on record")
    if not _is_nominal(schedule, instant):
        return _answer(schedule, instant, Verdict.NOT_AN_OCCURRENCE, _nearest(schedule, instant))
    return _undecided(schedule, instant, now)


def with_why(explanation: Explanation, why: Why) -> Explanation:
    """The answer, and why its run is where it is."""
    sentence = f"{explanation.sentence} {why.sentence}"
    return replace(explanation, sentence=sentence, why=why)


def _from_runs(schedule: Schedule, instant: datetime, runs: Sequence[Run]) -> Explanation | None:
    """A run that was really run tells more than the skip it makes up for."""
    found = [run for run in runs if run.source.nominal_time == instant]
    run = next((one for one in found if one.status is not Status.SKIPPED), None)
    if run is not None:
        sentence = f"it has run {run.id}, which is {run.status}"
        return _answer(schedule, instant, Verdict.HAS_RUN, sentence, run=run)
    if not found:
        return None
    run = found[0]
    because = _because(schedule, run.reason)
    return _answer(schedule, instant, Verdict.SKIPPED, because, run=run, reason=run.reason)


def _from_spans(
    schedule: Schedule, instant: datetime, spans: Sequence[SkippedSpan]
) -> Explanation | None:
    # A span from before a change of cadence is made of times that can no longer be computed.
    if instant > schedule.cadence_since and not _is_nominal(schedule, instant):
        return None
    for span in spans:
        if span.first <= instant <= span.last:
            others = f"one of {span.count} until {rfc3339(span.last)}"
            because = f"{_because(schedule, span.reason)} ({others})"
            return _answer(
                schedule, instant, Verdict.SKIPPED, because, span=span, reason=span.reason
            )
    return None


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
    if schedule.deleted is not None:
        return f"the schedule was deleted at {rfc3339(schedule.deleted.at)}"
    if not schedule.definition.enabled:
        return "the schedule is disabled by its definition"
    if schedule.paused is not None:
        why = f" ({schedule.paused.reason})" if schedule.paused.reason else ""
        return f"the schedule is paused since {rfc3339(schedule.paused.at)}{why}"
    return None


def _nearest(schedule: Schedule, instant: datetime) -> str:
    around = (previous_time(schedule.cadence, instant), next_time(schedule.cadence, instant))
    before, after = (rfc3339(time) if time else "never" for time in around)
    return f"it is none of its times; the last before it is {before}, the next {after}"


def _is_nominal(schedule: Schedule, instant: datetime) -> bool:
    return next_time(schedule.cadence, instant - TICK) == instant


def _because(schedule: Schedule, reason: str | None) -> str:
    if reason not in BECAUSE:
        return f"it was skipped: {reason}"
    definition, pause = schedule.definition, schedule.last_pause
    return BECAUSE[SkipReason(reason)].format(
        grace=definition.misfire_grace,
        misfire=definition.misfire,
        overlap=definition.overlap,
        slots=definition.slots,
        limit=definition.catch_up_limit,
        age=definition.catch_up_age,
        pause=f" until {rfc3339(pause.until)}" if pause else "",
    )


def _answer(
    schedule: Schedule,
    instant: datetime,
    verdict: Verdict,
    sentence: str,
    *,
    reason: str | None = None,
    run: Run | None = None,
    span: SkippedSpan | None = None,
) -> Explanation:
    return Explanation(
        verdict=verdict,
        sentence=f"{schedule.id} at {rfc3339(instant)}: {sentence}.",
        instant=instant,
        reason=reason,
        run=run,
        span=span,
        previous=previous_time(schedule.cadence, instant),
        following=next_time(schedule.cadence, instant),
    )
