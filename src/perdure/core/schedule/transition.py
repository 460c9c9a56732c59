"""One schedule's step, ready to be stored: how far it is then, and everything that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec
from msgspec.structs import replace

from perdure.core.decide.create import NewRun
from perdure.core.decide.operator import decide_cancel, decide_skip
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import Limit, declare
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.run import Actor
from perdure.core.run.skip import SkipReason
from perdure.core.schedule.change import Change
from perdure.core.schedule.definition import Schedule, SkippedSpan
from perdure.core.schedule.occurrence import first_events, schedule_actor
from perdure.core.schedule.plan import Plan
from perdure.core.schedule.skips import superseding
from perdure.core.text import rfc3339
from perdure.errors import InvalidInput, UnreadableHistory


class Place(msgspec.Struct, frozen=True):
    """Where a schedule is: every step starts from one, or from nowhere."""

    version: int
    cursor: datetime


class ScheduleStep(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter stores, all of it or nothing, if the stored schedule is at `expected`.

    Without `expected` there must be none. `commits` are new occurrences and what displaces older
    ones; of these only occurrences that exist already may be left out. `limit`: its slots, if the
    step changes more than the cursor.
    """

    schedule: Schedule
    expected: Place | None = None
    commits: tuple[Commit, ...] = ()
    spans: tuple[SkippedSpan, ...] = ()
    limit: Limit | None = None

    @property
    def misplaced(self) -> str | None:
        """What about it would let a time be decided twice, whoever decided so."""
        if self.expected is None:
            return "it is new, and has occurrences" if self.commits or self.spans else None
        before, after = self.expected.cursor, self.schedule.cursor
        if after < before:
            return f"its cursor would go back from {rfc3339(before)} to {rfc3339(after)}"
        beyond = [time for time in self._times() if not before < time <= after]
        return f"{rfc3339(beyond[0])} is not between its cursors" if beyond else None

    def _times(self) -> Iterator[datetime]:
        """The times it decides, as far as it has them singly."""
        for commit in self.commits:
            if commit.expected_sequence == 0 and commit.run.source.nominal_time is not None:
                yield commit.run.source.nominal_time
        for span in self.spans:
            yield from (span.first, span.last)


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to make runs: what the task asks for, ids, and the time."""

    task: NewRun
    run_id: Callable[[datetime], str]
    commit_id: Callable[[], str]
    now: datetime


def place_of(schedule: Schedule) -> Place:
    return Place(schedule.version, schedule.cursor)


def advancing(schedule: Schedule, plan: Plan, making: Making) -> ScheduleStep:
    """The step that carries out a plan and changes nothing else about the schedule."""
    return ScheduleStep(
        schedule=replace(schedule, cursor=plan.cursor),
        expected=Place(plan.expected_version, plan.expected_cursor),
        commits=tuple(_commits(schedule, plan, making)),
        spans=plan.spans,
    )


def creating(schedule: Schedule, by: Actor) -> ScheduleStep:
    """The step that makes a new schedule."""
    return ScheduleStep(schedule=schedule, limit=slots_of(schedule, by, schedule.created_at))


def changing(schedule: Schedule, change: Change, making: Making, by: Actor) -> ScheduleStep:
    """The step that carries out a change, or as much of it as can be done at once."""
    step = ScheduleStep(schedule=schedule, expected=place_of(schedule))
    if change.plan is not None:
        step = advancing(schedule, change.plan, making)
    if change.schedule is None:
        return step
    limit = slots_of(change.schedule, by, making.now)
    return replace(step, schedule=change.schedule, limit=limit)


def slots_of(schedule: Schedule, by: Actor, at: datetime) -> Limit:
    """Its limit, as claims meet it."""
    limit = Limit(
        scope=LimitScope.SCHEDULE, name=schedule.id, environment=schedule.environment, version=1
    )
    return declare(limit, schedule.limit, by, at)


def _commits(schedule: Schedule, plan: Plan, making: Making) -> Iterator[Commit]:
    actor, now = schedule_actor(schedule), making.now
    newest = plan.newest or plan.cursor
    for run in plan.superseded:
        evidence = superseding(schedule, newest)
        skipped = decide_skip(run, actor, now, SkipReason.SUPERSEDED, evidence)
        yield prepare_commit(run, skipped, making.commit_id())
    for run in plan.stopped:
        reason = f"replaced by the occurrence of {rfc3339(newest)}"
        cancelled = decide_cancel(run, actor, now, reason)
        yield prepare_commit(run, cancelled, making.commit_id())
    for occurrence in plan.occurrences:
        events = first_events(schedule, occurrence, making.task, making.run_id(now), now)
        yield prepare_commit(None, events, making.commit_id())


def encode_schedule(schedule: Schedule) -> str:
    """As it is stored."""
    return msgspec.json.encode(schedule).decode()


def decode_schedule(
    name: str, body: str, place: Place, forgotten_until: datetime | None = None
) -> Schedule:
    """As it was stored, at `place`, which moves without it, as what is forgotten does. Raises
    UnreadableHistory."""
    try:
        schedule = msgspec.json.decode(body, type=Schedule)
    except (ValueError, InvalidInput) as error:
        problem = f"it is damaged, or of newer code: {error}"
        raise UnreadableHistory(f"schedule {name}", problem) from error
    moved = {"version": place.version, "cursor": place.cursor}
    return replace(schedule, **moved, forgotten_until=forgotten_until)
