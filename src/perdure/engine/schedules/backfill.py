"""Runs of a schedule for a range of the past: those of its times that have not been run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide.create import NewRun, decide_create
from perdure.core.json_text import in_utc
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, Run
from perdure.core.schedule import (
    Backfill,
    Schedule,
    SkippedSpan,
    backfillable,
    backfilled,
    count_times,
    decide_backfill,
    next_time,
    was_recorded,
)
from perdure.core.schedule.times import TICK
from perdure.core.text import rfc3339
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.schedules.change import stored_schedule
from perdure.errors import InvalidInput, SequenceConflict
from perdure.storage.contract.runs import Committed, Existing, Outcome

MOST_AT_ONCE = 1000
MOST_READ = 5000
"""So many runs of the range are looked at; of a longer one the rest is left for the next call."""
MOST_TRIES = 5

Range = tuple[datetime, datetime]


class Backfilled(msgspec.Struct, frozen=True):
    """The runs, in the order of their times; those that somebody else made meanwhile are among
    them. `rest_after`: there is more to do, from there on."""

    runs: tuple[RunHandle[Any], ...]
    rest_after: datetime | None = None


class _Record(msgspec.Struct, frozen=True):
    """What is on record for a range, as far as it was read: until `end`."""

    schedule: Schedule
    runs: Sequence[Run]
    spans: Sequence[SkippedSpan]
    end: datetime

    @property
    def occurred(self) -> frozenset[datetime]:
        return self._times(skipped=False)

    @property
    def skipped(self) -> frozenset[datetime]:
        return self._times(skipped=True)

    def _times(self, *, skipped: bool) -> frozenset[datetime]:
        return frozenset(
            run.source.nominal_time
            for run in self.runs
            if run.source.nominal_time and (run.status is Status.SKIPPED) is skipped
        )


def check_range(start: datetime, end: datetime) -> Range:
    """Raises InvalidInput unless it runs forward."""
    first, last = in_utc(start, "start"), in_utc(end, "end")
    if last < first:
        raise InvalidInput("end", f"must not lie before start, {rfc3339(first)}")
    return first, last


async def backfill_range(
    runtime: Runtime,
    handles: Handles,
    schedule: Schedule,
    wish: NewRun,
    within: Range,
    reason: str,
    actor: Actor,
) -> Backfilled:
    """One run for each time; decided again where somebody else made one meanwhile."""
    start, end = within
    made: dict[datetime, Outcome] = {}
    rest_after = None
    for _ in range(MOST_TRIES):
        record = await _read(runtime, schedule, start, end)
        chosen = _choose(record, start)
        rest_after = chosen.rest_after or (record.end if record.end < end else None)
        commits = {
            time: _commit(runtime, schedule, wish, time, reason, actor, record)
            for time in chosen.times
            if time not in made
        }
        outcomes = await runtime.storage.commit(list(commits.values()))
        made |= dict(zip(commits, outcomes, strict=True))
        stale = [time for time, it in made.items() if isinstance(it, SequenceConflict)]
        if not stale:
            break
        made = {time: it for time, it in made.items() if time not in stale}
    queue = schedule.definition.queue or wish.queue
    runtime.hints.publish([hints.work(schedule.environment, queue)])
    runs = tuple(_handle(handles, wish, made[time]) for time in sorted(made))
    return Backfilled(runs, rest_after)


def _choose(record: _Record, start: datetime) -> Backfill:
    return decide_backfill(
        record.schedule,
        start,
        record.end,
        record.occurred,
        record.skipped,
        record.spans,
        limit=MOST_AT_ONCE,
    )


async def count_range(runtime: Runtime, schedule: Schedule, within: Range) -> int:
    """How many of its times in the range have not been run. Nothing is enumerated but runs."""
    start, end = within
    end, times = min(end, schedule.cursor), 0
    while start <= end:
        record = await _read(runtime, schedule, start, end)
        parts = backfillable(record.schedule, start, record.end, record.skipped, record.spans)
        times += sum(count_times(schedule.cadence, *part) for part in parts)
        ours = [it for it in record.occurred if any(after < it <= end for after, end in parts)]
        times -= sum(next_time(schedule.cadence, time - TICK) == time for time in ours)
        start = record.end + TICK
    return times


async def _read(runtime: Runtime, schedule: Schedule, start: datetime, end: datetime) -> _Record:
    storage, place = runtime.storage, (schedule.environment, schedule.id)
    runs = await storage.occurrences(*place, start, end, limit=MOST_READ)
    spans = await storage.spans(*place, start, end, limit=MOST_READ)
    if len(runs) == MOST_READ:
        # Of the last time there may be more: a skip, and the run that made up for it.
        end = (runs[-1].source.nominal_time or end) - TICK
    # Read after the runs: who was pruned before they were read is known to be forgotten by now.
    stored = await stored_schedule(runtime, schedule.id)
    known = replace(schedule, forgotten_until=stored.forgotten_until)
    return _Record(known, runs, spans, end)


def _commit(
    runtime: Runtime,
    schedule: Schedule,
    task: NewRun,
    time: datetime,
    reason: str,
    actor: Actor,
    record: _Record,
) -> Commit:
    now = runtime.now()
    run_id = runtime.ids.run_id(now)
    recorded = was_recorded(time, record.skipped, record.spans)
    wish = backfilled(schedule, task, run_id, time, reason, recorded=recorded)
    return prepare_commit(None, decide_create(wish, run_id, actor, now), runtime.ids.commit_id())


def _handle(handles: Handles, wish: NewRun, outcome: Outcome) -> RunHandle[Any]:
    if not isinstance(outcome, Committed | Existing):
        raise outcome
    return handles.make(outcome.run_id, wish.task, created=isinstance(outcome, Committed))
