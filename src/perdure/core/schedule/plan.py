"""What a scheduler is to do about a schedule now: decided here, made true in one transaction.

Work is bounded however long the outage: what is not run is counted, not enumerated (`times`), and
one decision writes at most `MOST_PER_STEP` runs, oldest first. If that was not all, the plan says
so, and the next decision goes on from the cursor this one leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import assert_never

import msgspec
from msgspec.structs import replace

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, SourceType
from perdure.core.run.skip import Evidence, SkipReason
from perdure.core.schedule.definition import Misfire, Overlap, Schedule, SkippedSpan
from perdure.core.schedule.skips import Late, crowding, superseding, too_old
from perdure.core.schedule.times import (
    TICK,
    jittered,
    newest_times,
    next_time,
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
    evidence: Evidence | None = None


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

    @property
    def newest(self) -> datetime | None:
        """The time that others give way to."""
        return next((one.nominal for one in reversed(self.occurrences) if not one.skipped), None)


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


def _misfired(
    schedule: Schedule, now: datetime
) -> tuple[tuple[SkippedSpan, ...], list[Occurrence]]:
    """The late ones: those not run, the newest singly and the rest as spans; then those run."""
    until = _last_late(schedule, now)
    run = _made_up(schedule, now, until)
    unrun_until = run[0] - TICK if run else until
    kept = newest_times(schedule.cadence, schedule.cursor, unrun_until, SKIPS_KEPT_SINGLY)
    late = Late(schedule, now, instead=_instead(schedule, now, until, run))
    spans = late.spans(kept[0] - TICK) if kept else ()
    return spans, [*(_skip(late, time) for time in kept), *(_run(schedule, time) for time in run)]


def _instead(
    schedule: Schedule, now: datetime, until: datetime, run: tuple[datetime, ...]
) -> datetime | None:
    """Which one makes up for those that are not run, by the policy that lets one do so."""
    if schedule.definition.misfire is not Misfire.RUN_ONCE:
        return None
    return run[0] if run else next_time(schedule.cadence, max(schedule.cursor, until))


def _fresh(schedule: Schedule, now: datetime) -> Iterator[Occurrence]:
    """Those decided in time: no misfire policy concerns them."""
    after = max(schedule.cursor, _last_late(schedule, now))
    return (_run(schedule, time) for time in times_between(schedule.cadence, after, now))


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
            after = max(after, too_old(schedule, now) or after)
            return newest_times(definition.cadence, after, until, definition.catch_up_limit)
        case _:
            assert_never(definition.misfire)


def _run(schedule: Schedule, nominal: datetime) -> Occurrence:
    run_at = jittered(schedule.cadence, schedule.id, nominal)
    return Occurrence(nominal=nominal, run_at=run_at)


def _skip(late: Late, nominal: datetime) -> Occurrence:
    reason, evidence = late.reason(nominal), late.evidence(nominal)
    return Occurrence(nominal=nominal, run_at=nominal, skipped=reason, evidence=evidence)


def _overlapped(
    schedule: Schedule, occurrences: list[Occurrence], runs: Sequence[Run]
) -> tuple[Occurrence, ...]:
    """The occurrences as the overlap policy leaves them."""
    match schedule.definition.overlap:
        case Overlap.ALLOW | Overlap.FORBID:
            return tuple(occurrences)  # all are made; their slots make them wait
        case Overlap.SKIP:
            if len(_holders(runs)) < schedule.definition.slots:
                return tuple(occurrences)
            held_by = [run.id for run in _holders(runs)]
            crowded = crowding(schedule, held_by)
            return _passed_over(occurrences, None, SkipReason.OVERLAP, crowded)
        case Overlap.QUEUE_LATEST | Overlap.REPLACE:
            newest = _newest(occurrences)
            newer = superseding(schedule, None if newest is None else newest.nominal)
            return _passed_over(occurrences, newest, SkipReason.SUPERSEDED, newer)
        case _:
            assert_never(schedule.definition.overlap)


def _passed_over(
    occurrences: list[Occurrence],
    spared: Occurrence | None,
    reason: SkipReason,
    evidence: Evidence,
) -> tuple[Occurrence, ...]:
    """Skipped for `reason`, unless they already are for another, or are the one spared."""
    return tuple(
        one
        if one.skipped or one is spared
        else replace(one, run_at=one.nominal, skipped=reason, evidence=evidence)
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
    needed = len(_holders(runs)) - schedule.definition.slots + 1 - len(asked)
    return tuple([run for run in active if run not in asked][: max(needed, 0)])


def _holders(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.holds_schedule_slot]


def _has_not_begun(run: Run) -> bool:
    """Never claimed, and not held by an operator either."""
    return run.status in (Status.QUEUED, Status.SCHEDULED) and not run.counters.claims


def _by_nominal_time(run: Run) -> tuple[datetime, str]:
    return run.source.nominal_time or run.created_at, run.id
