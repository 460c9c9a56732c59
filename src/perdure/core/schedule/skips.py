"""Times that are not run: for which reason, on what evidence, and many of them in one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from perdure.core.run.skip import Evidence, Pause, SkipReason, Touch
from perdure.core.schedule.definition import Definition, Misfire, Schedule, SkippedSpan
from perdure.core.schedule.times import TICK, count_times, next_time, previous_time

MOST_HOLDERS = 5
"""So many of the runs that hold a schedule's slots are named."""


class Late(NamedTuple):
    """What is to be said about times that were decided too late. `instead`: the one that is run
    and makes up for them."""

    schedule: Schedule
    now: datetime
    instead: datetime | None = None

    def reason(self, nominal: datetime) -> SkipReason:
        limit = too_old(self.schedule, self.now)
        if limit is not None and nominal <= limit:
            return SkipReason.TOO_OLD
        if self.schedule.definition.misfire is Misfire.CATCH_UP:
            return SkipReason.OVER_LIMIT
        return SkipReason.PAUSED if self._pause(nominal) else SkipReason.MISFIRED

    def evidence(self, nominal: datetime) -> Evidence:
        policies = _POLICIES[self.reason(nominal)](self.schedule.definition)
        return replace(policies, pause=self._pause(nominal), newer=self.instead)

    def spans(self, until: datetime) -> tuple[SkippedSpan, ...]:
        """The older ones, one record for each reason and what it rests on."""
        turns = _turns(self.schedule.pauses, too_old(self.schedule, self.now))
        return _recorded(self.schedule, until, turns, self._span)

    def _span(self, after: datetime, until: datetime) -> Iterator[SkippedSpan]:
        reason, evidence = self.reason(until), self.evidence(until)
        return _record_span(self.schedule, after, until, reason, evidence, self.now)

    def _pause(self, nominal: datetime) -> Pause | None:
        return _pause_at(self.schedule.pauses, nominal)


_POLICIES: dict[SkipReason, Callable[[Definition], Evidence]] = {
    SkipReason.MISFIRED: lambda it: Evidence(misfire=it.misfire, misfire_grace=it.misfire_grace),
    SkipReason.PAUSED: lambda it: Evidence(misfire=it.misfire),
    SkipReason.TOO_OLD: lambda it: Evidence(misfire=it.misfire, catch_up_age=it.catch_up_age),
    SkipReason.OVER_LIMIT: lambda it: Evidence(
        misfire=it.misfire, catch_up_limit=it.catch_up_limit
    ),
}


class Unlived(NamedTuple):
    """What is to be said about times that nobody may decide any more, since they ended with
    `reason`: the schedule was changed or deleted while something held it."""

    schedule: Schedule
    now: datetime
    reason: SkipReason
    touch: Touch | None = None
    unknown_task: str | None = None

    def spans(self) -> tuple[SkippedSpan, ...]:
        return _recorded(self.schedule, self.now, _turns(self._pauses), self._span)

    def _span(self, after: datetime, until: datetime) -> Iterator[SkippedSpan]:
        evidence = Evidence(
            touch=self.touch,
            pause=_pause_at(self._pauses, until),
            unknown_task=self.unknown_task,
        )
        return _record_span(self.schedule, after, until, self.reason, evidence, self.now)

    @property
    def _pauses(self) -> tuple[Pause, ...]:
        held = self.schedule.paused
        ended = () if held is None else (ended_pause(held, self.now),)
        return (*self.schedule.pauses, *ended)


def ended_pause(paused: Touch, now: datetime) -> Pause:
    """A pause that ends now."""
    return Pause(since=paused.at, until=max(now, paused.at), by=paused.by, reason=paused.reason)


def crowding(schedule: Schedule, held_by: Sequence[str]) -> Evidence:
    """The evidence of one that finds no slot."""
    definition = schedule.definition
    return Evidence(
        overlap=definition.overlap,
        slots=definition.slots,
        held_by=tuple(held_by[:MOST_HOLDERS]),
    )


def superseding(schedule: Schedule, newer: datetime | None) -> Evidence:
    """The evidence of one that gives way to a newer one."""
    return Evidence(overlap=schedule.definition.overlap, newer=newer)


def too_old(schedule: Schedule, now: datetime) -> datetime | None:
    """The last instant that lies too far back to be caught up with."""
    age = schedule.definition.catch_up_age
    if age is None or schedule.definition.misfire is not Misfire.CATCH_UP:
        return None
    return now - age - TICK


def _pause_at(pauses: Sequence[Pause], nominal: datetime) -> Pause | None:
    return next((it for it in reversed(pauses) if it.since < nominal <= it.until), None)


def _turns(pauses: Sequence[Pause], *others: datetime | None) -> list[datetime]:
    """Where one reason, or what it rests on, may give way to another."""
    edges = [edge for pause in pauses for edge in (pause.since, pause.until)]
    return sorted({*edges, *(other for other in others if other is not None)})


def _recorded(
    schedule: Schedule,
    until: datetime,
    turns: Sequence[datetime],
    record: Callable[[datetime, datetime], Iterator[SkippedSpan]],
) -> tuple[SkippedSpan, ...]:
    """Every time after the cursor until then; neighbours that say the same are one."""
    between = [turn for turn in turns if schedule.cursor < turn < until]
    spans: list[SkippedSpan] = []
    for after, end in pairwise([schedule.cursor, *between, until]):
        for span in record(after, end):
            if spans and _says_the_same(spans[-1], span):
                span = _joined(spans.pop(), span)
            spans.append(span)
    return tuple(spans)


def _says_the_same(one: SkippedSpan, other: SkippedSpan) -> bool:
    return (one.reason, one.evidence) == (other.reason, other.evidence)


def _joined(span: SkippedSpan, following: SkippedSpan) -> SkippedSpan:
    return replace(span, last=following.last, count=span.count + following.count)


def _record_span(
    schedule: Schedule,
    after: datetime,
    until: datetime,
    reason: SkipReason,
    evidence: Evidence,
    now: datetime,
) -> Iterator[SkippedSpan]:
    """One record of every occurrence after `after` up to `until`; none if there are none."""
    first = next_time(schedule.cadence, after)
    last = previous_time(schedule.cadence, until + TICK)
    if first is None or last is None or first > until:
        return
    yield SkippedSpan(
        schedule_id=schedule.id,
        environment=schedule.environment,
        first=first,
        last=last,
        count=count_times(schedule.cadence, after, until),
        reason=reason,
        recorded_at=now,
        evidence=evidence,
    )
