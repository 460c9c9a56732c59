"""What a scheduler is to do about a schedule now: decided here, made true in one transaction.

Work is bounded however long the outage: what is not run is counted, not enumerated (`times`), and
one decision writes at most `MOST_PER_STEP` runs, oldest first. If that was not all, the plan says
so, and the next decision goes on from the cursor this one leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice, pairwise
from typing import assert_never

import msgspec
from msgspec.structs import replace

from perdure.core.lifecycle import Status
from perdure.core.run import Run, SourceType
from perdure.core.schedule.definition import Misfire, Overlap, Schedule, SkippedSpan, SkipReason
from perdure.core.schedule.times import (
    TICK,
    count_times,
    jittered,
    newest_times,
    next_time,
    previous_time,
    times_between,
)

MOST_PER_STEP = 1000
SKIPS_KEPT_SINGLY = 100
"""Of the occurrences of one outage that are not run, so many have a skipped run each."""


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One nominal time: to be run at `run_at`, or to be recorded as skipped."""

    nominal: datetime
    run_at: datetime
    skipped: SkipReason | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one transaction makes true, if the schedule still is where it starts.

    The schedule's row must be at `(expected_version, expected_cursor)`, the `superseded` and
    `stopped` runs at their sequences; else all of it is decided again.
    """

    expected_version: int
    expected_cursor: datetime
    cursor: datetime
    occurrences: tuple[Occurrence, ...] = ()
    spans: tuple[SkippedSpan, ...] = ()
    superseded: tuple[Run, ...] = ()
    stopped: tuple[Run, ...] = ()
    more: bool = False


def decide_occurrences(schedule: Schedule, now: datetime, runs: Sequence[Run] = ()) -> Plan | None:
    """What to create, skip, supersede and stop, up to `now`. None: there is nothing to do.

    `runs` are the runs of this schedule that have not ended. Only `skip`, `queue_latest` and
    `replace` look at them.
    """
    due = schedule.next_at
    if due is None or due > now:
        return None
    spans, missed = _misfired(schedule, now)
    fresh = _fresh(schedule, now)
    found = list(islice(chain(missed, fresh), MOST_PER_STEP + 1))
    occurrences = found[:MOST_PER_STEP]
    superseded, stopped = _displaced(schedule, occurrences, runs)
    return Plan(
        expected_version=schedule.version,
        expected_cursor=schedule.cursor,
        cursor=occurrences[-1].nominal,
        occurrences=_overlapped(schedule, occurrences, runs),
        spans=spans,
        superseded=superseded,
        stopped=stopped,
        more=len(found) > MOST_PER_STEP,
    )


def is_own_occurrence(run: Run) -> bool:
    """Made by the cadence itself: not triggered by hand, backfilled, rerun or retried by hand."""
    return run.source.type is SourceType.SCHEDULE and run.source.reason is None


def record_span(
    schedule: Schedule, after: datetime, until: datetime, reason: SkipReason, now: datetime
) -> tuple[SkippedSpan, ...]:
    """One record of every occurrence after `after` up to `until`; none if there are none."""
    first = next_time(schedule.cadence, after)
    last = previous_time(schedule.cadence, until + TICK)
    if first is None or last is None or first > until:
        return ()
    span = SkippedSpan(
        schedule_id=schedule.id,
        environment=schedule.environment,
        first=first,
        last=last,
        count=count_times(schedule.cadence, after, until),
        reason=reason,
        recorded_at=now,
    )
    return (span,)


def _misfired(
    schedule: Schedule, now: datetime
) -> tuple[tuple[SkippedSpan, ...], list[Occurrence]]:
    """The late ones: those not run, the newest singly and the rest as spans; then those run."""
    until = _last_late(schedule, now)
    run = _made_up(schedule, now, until)
    unrun_until = run[0] - TICK if run else until
    kept = newest_times(schedule.cadence, schedule.cursor, unrun_until, SKIPS_KEPT_SINGLY)
    spans = _spans(schedule, kept[0] - TICK, now) if kept else ()
    skips = [_occurrence(schedule, time, _reason(schedule, time, now)) for time in kept]
    return spans, [*skips, *(_occurrence(schedule, time) for time in run)]


def _fresh(schedule: Schedule, now: datetime) -> Iterator[Occurrence]:
    """Those decided in time: no misfire policy concerns them."""
    after = max(schedule.cursor, _last_late(schedule, now))
    return (_occurrence(schedule, time) for time in times_between(schedule.cadence, after, now))


def _last_late(schedule: Schedule, now: datetime) -> datetime:
    """The last instant that lies more than the grace before now."""
    return now - schedule.definition.misfire_grace - TICK


def _made_up(schedule: Schedule, now: datetime, until: datetime) -> tuple[datetime, ...]:
    """Which of the late occurrences are run all the same, in order."""
    definition, after = schedule.definition, schedule.cursor
    match definition.misfire:
        case Misfire.SKIP:
            return ()
        case Misfire.RUN_ONCE:
            following = next_time(definition.cadence, max(after, until))
            if following is not None and following <= now:
                return ()  # a newer one is due in time and makes up for all of them
            return newest_times(definition.cadence, after, until, 1)
        case Misfire.CATCH_UP:
            after = max(after, _too_old(schedule, now) or after)
            return newest_times(definition.cadence, after, until, definition.catch_up_limit)
        case _:
            assert_never(definition.misfire)


def _too_old(schedule: Schedule, now: datetime) -> datetime | None:
    """The last instant that lies too far back to be caught up with."""
    age = schedule.definition.catch_up_age
    if age is None or schedule.definition.misfire is not Misfire.CATCH_UP:
        return None
    return now - age - TICK


def _spans(schedule: Schedule, until: datetime, now: datetime) -> tuple[SkippedSpan, ...]:
    """The older ones that are not run, one record for each reason."""
    pause, too_old = schedule.last_pause, _too_old(schedule, now)
    turns = [too_old, *((pause.since, pause.until) if pause else ())]
    between = sorted(turn for turn in turns if turn and schedule.cursor < turn < until)
    spans: list[SkippedSpan] = []
    for after, end in pairwise([schedule.cursor, *between, until]):
        for span in record_span(schedule, after, end, _reason(schedule, end, now), now):
            if spans and spans[-1].reason is span.reason:
                span = _joined(spans.pop(), span)
            spans.append(span)
    return tuple(spans)


def _joined(span: SkippedSpan, following: SkippedSpan) -> SkippedSpan:
    return replace(span, last=following.last, count=span.count + following.count)


def _reason(schedule: Schedule, nominal: datetime, now: datetime) -> SkipReason:
    pause, too_old = schedule.last_pause, _too_old(schedule, now)
    if too_old is not None and nominal <= too_old:
        return SkipReason.TOO_OLD
    if schedule.definition.misfire is Misfire.CATCH_UP:
        return SkipReason.OVER_LIMIT
    if pause is not None and pause.since < nominal <= pause.until:
        return SkipReason.PAUSED
    return SkipReason.MISFIRED


def _occurrence(
    schedule: Schedule, nominal: datetime, skipped: SkipReason | None = None
) -> Occurrence:
    run_at = nominal if skipped else jittered(schedule.cadence, schedule.id, nominal)
    return Occurrence(nominal=nominal, run_at=run_at, skipped=skipped)


def _overlapped(
    schedule: Schedule, occurrences: list[Occurrence], runs: Sequence[Run]
) -> tuple[Occurrence, ...]:
    """The occurrences as the overlap policy leaves them."""
    match schedule.definition.overlap:
        case Overlap.ALLOW | Overlap.FORBID:
            return tuple(occurrences)  # all are made; their slots make them wait
        case Overlap.SKIP:
            if _holders(runs) < schedule.definition.slots:
                return tuple(occurrences)
            return _passed_over(occurrences, None, SkipReason.OVERLAP)
        case Overlap.QUEUE_LATEST | Overlap.REPLACE:
            return _passed_over(occurrences, _newest(occurrences), SkipReason.SUPERSEDED)
        case _:
            assert_never(schedule.definition.overlap)


def _passed_over(
    occurrences: list[Occurrence], spared: Occurrence | None, reason: SkipReason
) -> tuple[Occurrence, ...]:
    """Skipped for `reason`, unless they already are for another, or are the one spared."""
    return tuple(
        one if one.skipped or one is spared else replace(one, run_at=one.nominal, skipped=reason)
        for one in occurrences
    )


def _newest(occurrences: Sequence[Occurrence]) -> Occurrence | None:
    return next((one for one in reversed(occurrences) if one.skipped is None), None)


def _displaced(
    schedule: Schedule, occurrences: Sequence[Occurrence], runs: Sequence[Run]
) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """Which earlier occurrences give way to the newest: unbegun ones, and active ones."""
    overlap, newest = schedule.definition.overlap, _newest(occurrences)
    if newest is None or overlap not in (Overlap.QUEUE_LATEST, Overlap.REPLACE):
        return (), ()
    own = sorted((run for run in runs if is_own_occurrence(run)), key=_by_nominal_time)
    waiting = [run for run in own if _has_not_begun(run)]
    stopped = _to_stop(own, runs, schedule) if overlap is Overlap.REPLACE else ()
    return tuple(waiting[:MOST_PER_STEP]), stopped


def _to_stop(own: list[Run], runs: Sequence[Run], schedule: Schedule) -> tuple[Run, ...]:
    """The oldest active occurrences, as many as must end before the newest has a slot."""
    active = [run for run in own if run.holds_schedule_slot]
    asked = [run for run in active if run.status is Status.CANCELLATION_REQUESTED]
    needed = _holders(runs) - schedule.definition.slots + 1 - len(asked)
    return tuple([run for run in active if run not in asked][: max(needed, 0)])


def _holders(runs: Sequence[Run]) -> int:
    return sum(run.holds_schedule_slot for run in runs)


def _has_not_begun(run: Run) -> bool:
    """Never claimed, and not held by an operator either."""
    return run.status in (Status.QUEUED, Status.SCHEDULED) and not run.counters.claims


def _by_nominal_time(run: Run) -> tuple[datetime, str]:
    return run.source.nominal_time or run.created_at, run.id
