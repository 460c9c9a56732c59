"""How a schedule's runs are made: by its cadence, by hand, and for a range of the past."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide.create import NewRun, decide_create
from perdure.core.decide.event import Events
from perdure.core.decide.operator import decide_skip
from perdure.core.json_text import in_utc
from perdure.core.run.failure import clean_text
from perdure.core.run.reducer import replay
from perdure.core.run.run import Actor, ActorType, Source, SourceType
from perdure.core.schedule.definition import Schedule, SkippedSpan, overridden
from perdure.core.schedule.plan import MOST_PER_STEP, Occurrence
from perdure.core.schedule.times import TICK, times_between
from perdure.core.text import rfc3339
from perdure.errors import InvalidInput


class Backfill(msgspec.Struct, frozen=True):
    """Nominal times to run after all; `rest_after`: ask again from there for the others."""

    times: tuple[datetime, ...]
    rest_after: datetime | None = None


def occurrence_key(schedule_id: str, nominal: datetime) -> str:
    """The name that one run at most may have: one nominal time, one run."""
    return f"{schedule_id}:{rfc3339(nominal)}"


def schedule_actor(schedule: Schedule) -> Actor:
    return Actor(ActorType.SCHEDULE, schedule.id)


def first_events(
    schedule: Schedule,
    occurrence: Occurrence,
    task: NewRun,
    run_id: str,
    now: datetime,
    *,
    dispatch: bool = False,
) -> Events:
    """The first events of an occurrence's run; of a skipped one also the last.

    `task` is what a plain trigger of the task would ask for: its queue, policy and version.
    """
    source = Source(
        type=SourceType.SCHEDULE, schedule_id=schedule.id, nominal_time=occurrence.nominal
    )
    key = occurrence_key(schedule.id, occurrence.nominal)
    new = _asked(schedule, task, source=source, occurrence_key=key, run_at=occurrence.run_at)
    actor = schedule_actor(schedule)
    if occurrence.skipped is None:
        return decide_create(new, run_id, actor, now, dispatch=dispatch)
    created = decide_create(new, run_id, actor, now)
    skipped, evidence = occurrence.skipped, occurrence.evidence
    return [*created, *decide_skip(replay(created), actor, now, skipped, evidence)]


def triggered(schedule: Schedule, task: NewRun, run_id: str, reason: str) -> NewRun:
    """A run of the schedule now, by hand. Its cadence goes on as if nothing had been."""
    return _asked(
        schedule,
        task,
        source=Source(
            type=SourceType.SCHEDULE, schedule_id=schedule.id, reason=required_reason(reason)
        ),
        occurrence_key=f"manual:{run_id}",
    )


def backfilled(
    schedule: Schedule,
    task: NewRun,
    run_id: str,
    nominal: datetime,
    reason: str,
    *,
    recorded: bool,
) -> NewRun:
    """The run of one of a backfill's times.

    If the time was `recorded` as skipped, its key is taken for good: the new run has a key of
    its own, and an idempotency key, so that two backfills of one range make one run.
    """
    key = occurrence_key(schedule.id, nominal)
    source = Source(
        type=SourceType.SCHEDULE,
        schedule_id=schedule.id,
        nominal_time=nominal,
        reason=required_reason(reason),
    )
    if not recorded:
        return _asked(schedule, task, source=source, occurrence_key=key)
    own = {"occurrence_key": f"manual:{run_id}", "idempotency_key": f"backfill:{key}"}
    return _asked(schedule, task, source=source, **own)


def decide_backfill(
    schedule: Schedule,
    start: datetime,
    end: datetime,
    occurred: Collection[datetime],
    skipped: Collection[datetime] = (),
    spans: Collection[SkippedSpan] = (),
    *,
    limit: int = MOST_PER_STEP,
) -> Backfill:
    """Which nominal times from `start` to `end`, both included, are to be run after all.

    `occurred` and `skipped` are the nominal times in that range of runs that were not, and that
    were skipped; `spans` are on record there.
    """
    start, end = in_utc(start, "start"), in_utc(end, "end")
    if end < start:
        raise InvalidInput("end", f"must not lie before start, {start.isoformat()}")
    times: list[datetime] = []
    for part in backfillable(schedule, start, end, skipped, spans):
        for time in times_between(schedule.cadence, *part):
            if len(times) == limit:
                return Backfill(tuple(times), rest_after=times[-1])
            if time not in occurred:
                times.append(time)
    return Backfill(tuple(times))


def backfillable(
    schedule: Schedule,
    start: datetime,
    end: datetime,
    skipped: Collection[datetime],
    spans: Collection[SkippedSpan],
) -> list[tuple[datetime, datetime]]:
    """The parts `(after, until]` of the range whose times may be run unless they have been.

    Times that the cadence has not decided yet are left to it. Of those it has decided and may
    have forgotten since, only what is on record as skipped is certain not to have run.
    """
    whole = (start - TICK, min(end, schedule.cursor))
    forgotten = (schedule.created_at, schedule.forgotten_until or schedule.created_at)
    told = [(time - TICK, time) for time in skipped]
    told += [(span.first - TICK, span.last) for span in spans]
    parts = [
        _common(whole, (whole[0], forgotten[0])),
        *(_common(_common(whole, forgotten), one) for one in told),
        _common(whole, (max(forgotten), whole[1])),
    ]
    return sorted(part for part in parts if part[0] < part[1])


def _common(
    one: tuple[datetime, datetime], other: tuple[datetime, datetime]
) -> tuple[datetime, datetime]:
    return max(one[0], other[0]), min(one[1], other[1])


def forgettable_keys(run_id: str, nominal: datetime | None, schedule: Schedule | None) -> list[str]:
    """Occurrence keys that a pruned run of the schedule leaves to nobody.

    A time behind the cursor is never decided again, and no backfill runs what may be forgotten.
    One from before the schedule was made was a backfill's: only its key tells the next one.
    """
    by_hand = f"manual:{run_id}"
    if nominal is None or schedule is None:
        return [by_hand]
    is_behind = schedule.created_at < nominal <= schedule.cursor
    return [by_hand, occurrence_key(schedule.id, nominal)] if is_behind else [by_hand]


def was_recorded(
    nominal: datetime, skipped: Collection[datetime], spans: Collection[SkippedSpan]
) -> bool:
    """Whether the time has a skip on record: a run of its own, or a place in a span."""
    return nominal in skipped or any(span.first <= nominal <= span.last for span in spans)


def required_reason(reason: str) -> str:
    """Raises InvalidInput for an empty one: whoever reads the history later must learn why."""
    if not (reason or "").strip():
        raise InvalidInput("reason", "say why, in a few words; it stays with the run")
    return clean_text(reason.strip())


def _asked(schedule: Schedule, task: NewRun, **fields: Any) -> NewRun:
    new = overridden(task, schedule.definition)
    return replace(new, environment=schedule.environment, **fields)
