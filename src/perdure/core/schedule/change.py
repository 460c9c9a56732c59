"""What operators, deployments and manifests may do to a schedule. Runs it made stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from perdure.core.run.run import DEFAULT_ENVIRONMENT, Actor, Run
from perdure.core.run.skip import SkipReason, Touch
from perdure.core.schedule.definition import (
    DefinedBy,
    Definition,
    Schedule,
    check_definition,
    definition_hash,
)
from perdure.core.schedule.plan import Plan, decide_occurrences
from perdure.core.schedule.skips import Unlived, ended_pause
from perdure.errors import InvalidInput

MOST_PAUSES = 50


class Change(msgspec.Struct, frozen=True):
    """A plan to carry out first, and the schedule as it is then; both in one transaction.

    Without a schedule there was too much to carry out: do that, then ask again.
    """

    plan: Plan | None
    schedule: Schedule | None


def new_schedule(
    definition: Definition,
    now: datetime,
    *,
    environment: str = DEFAULT_ENVIRONMENT,
    defined_by: DefinedBy = DefinedBy.OPERATOR,
    definition_version: int | None = None,
    by: Actor | None = None,
) -> Schedule:
    """A schedule whose first occurrence lies after `now`. Raises InvalidInput."""
    check_definition(definition)
    return Schedule(
        definition=definition,
        environment=environment,
        cursor=now,
        created_at=now,
        cadence_since=now,
        defined_by=defined_by,
        definition_hash=definition_hash(definition),
        definition_version=definition_version,
        defined=_hand(by, now),
    )


def decide_update(
    schedule: Schedule,
    definition: Definition,
    now: datetime,
    runs: Sequence[Run] = (),
    *,
    touch: Touch | None = None,
    defined_by: DefinedBy = DefinedBy.CODE,
    definition_version: int | None = None,
    by: Actor | None = None,
    is_known: bool = True,
) -> Change:
    """Another definition, from now on: what was due before is decided by the old one first.

    With `touch` it is an operator's change; without, it is what `defined_by` says, and `by` whom.
    A schedule that is paused, or whose task is not known (`is_known`), keeps its missed times for
    the day that is over, unless its cadence changes: then they are recorded as skipped, since
    nobody could tell them from the new cadence's.
    """
    check_definition(definition)
    if definition.id != schedule.id:
        problem = f"{schedule.id!r} cannot become {definition.id!r}; make a new one"
        raise InvalidInput("name", problem)
    hand = touch or _hand(by, now)
    plan = _settled(schedule, definition, now, runs, hand, is_known=is_known)
    if plan is not None and plan.more:
        return Change(plan, None)
    updated = replace(_redefined(schedule, definition, now, is_known=is_known), touched=touch)
    if touch is not None:
        return Change(plan, updated)
    stated = replace(
        updated,
        definition_hash=definition_hash(definition),
        definition_version=definition_version,
        defined_by=defined_by,
        defined=hand,
    )
    return Change(plan, stated)


def _redefined(
    schedule: Schedule, definition: Definition, now: datetime, *, is_known: bool
) -> Schedule:
    begins_anew = definition.cadence != schedule.cadence or _is_dormant(schedule)
    is_held = schedule.paused is not None or not is_known
    return replace(
        schedule,
        definition=definition,
        version=schedule.version + 1,
        cursor=schedule.cursor if is_held and not begins_anew else max(now, schedule.cursor),
        cadence_since=now if begins_anew else schedule.cadence_since,
        deleted=None,
    )


def decide_pause(
    schedule: Schedule, actor: Actor, now: datetime, reason: str | None = None
) -> Schedule | None:
    """No more occurrences until it is resumed. To pause it again changes nothing, unless for
    another reason: then one pause ends and another begins."""
    paused = schedule.paused
    if paused is not None and reason in (None, paused.reason):
        return None
    before = schedule if paused is None else _unpaused(schedule, paused, now)
    touch = Touch(by=actor, at=now, reason=reason)
    return replace(before, paused=touch, version=schedule.version + 1)


def decide_resume(schedule: Schedule, now: datetime) -> Schedule | None:
    """Go on. The cursor stays, so that the missed time is treated by the misfire policy."""
    if not schedule.definition.enabled:
        problem = f"{schedule.id!r} is disabled, which no resume ends; update it: enabled=True"
        raise InvalidInput("name", problem)
    if schedule.paused is None:
        return None
    return replace(_unpaused(schedule, schedule.paused, now), version=schedule.version + 1)


def _unpaused(schedule: Schedule, paused: Touch, now: datetime) -> Schedule:
    """Pauses are remembered until all of their times are decided; of very many the last."""
    undecided = [pause for pause in schedule.pauses if pause.until > schedule.cursor]
    pauses = (*undecided, ended_pause(paused, now))[-MOST_PAUSES:]
    return replace(schedule, paused=None, pauses=pauses)


def decide_delete(
    schedule: Schedule,
    actor: Actor,
    now: datetime,
    runs: Sequence[Run] = (),
    *,
    reason: str | None = None,
    is_known: bool = True,
) -> Change | None:
    """No more occurrences. What was due before is decided, or, if something holds the schedule,
    recorded as skipped. The record stays, for the history of those it had."""
    if schedule.deleted is not None:
        return None
    touch = Touch(by=actor, at=now, reason=reason)
    plan = _last_plan(schedule, now, runs, touch, is_known=is_known)
    if plan is not None and plan.more:
        return Change(plan, None)
    cursor = max(now, schedule.cursor)
    deleted = replace(schedule, deleted=touch, version=schedule.version + 1, cursor=cursor)
    return Change(plan, deleted)


def _settled(
    schedule: Schedule,
    definition: Definition,
    now: datetime,
    runs: Sequence[Run],
    hand: Touch | None,
    *,
    is_known: bool,
) -> Plan | None:
    """What the old definition still has to say about the time until now."""
    if schedule.is_live and is_known:
        return decide_occurrences(schedule, now, runs)
    keeps_missed = definition.cadence == schedule.cadence and not _is_dormant(schedule)
    if schedule.deleted is not None or keeps_missed:
        return None
    return _unlived(schedule, now, SkipReason.CHANGED, hand, is_known=is_known)


def _last_plan(
    schedule: Schedule, now: datetime, runs: Sequence[Run], hand: Touch, *, is_known: bool
) -> Plan | None:
    if schedule.is_live and is_known:
        return decide_occurrences(schedule, now, runs)
    return _unlived(schedule, now, SkipReason.DELETED, hand, is_known=is_known)


def _unlived(
    schedule: Schedule, now: datetime, reason: SkipReason, hand: Touch | None, *, is_known: bool
) -> Plan | None:
    """Times that nobody may decide any more. While it is disabled no other reason counts."""
    if now <= schedule.cursor:
        return None
    if not schedule.definition.enabled:
        # Whoever disabled it: nobody else has touched it since, or that would be on record.
        hand = schedule.touched or schedule.defined
        reason, is_known = SkipReason.DISABLED, True
    unknown_task = None if is_known else schedule.definition.task
    spans = Unlived(schedule, now, reason, hand, unknown_task).spans()
    if not spans:
        return None
    return Plan(
        expected_version=schedule.version,
        expected_cursor=schedule.cursor,
        cursor=now,
        spans=spans,
    )


def _hand(by: Actor | None, now: datetime) -> Touch | None:
    return None if by is None else Touch(by=by, at=now)


def _is_dormant(schedule: Schedule) -> bool:
    """Neither live nor paused: its time is not missed time."""
    return schedule.deleted is not None or not schedule.definition.enabled
