"""What operators, deployments and manifests may do to a schedule. Runs it made stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.run import DEFAULT_ENVIRONMENT, Actor, Run
from perdure.core.schedule.definition import (
    DefinedBy,
    Definition,
    Pause,
    Schedule,
    SkipReason,
    Touch,
    check_definition,
    definition_hash,
)
from perdure.core.schedule.plan import Plan, decide_occurrences, record_span
from perdure.errors import InvalidInput


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
) -> Change:
    """Another definition, from now on: what was due before is decided by the old one first.

    With `touch` it is an operator's change; without, it is what `defined_by` says, and `by` whom.
    A paused schedule keeps its missed times for the day it is resumed, unless its cadence changes:
    then they are recorded as skipped, since nobody could tell them from the new cadence's.
    """
    check_definition(definition)
    if definition.id != schedule.id:
        raise InvalidInput("id", f"{schedule.id!r} cannot become {definition.id!r}; make a new one")
    plan = _settled(schedule, definition, now, runs)
    if plan is not None and plan.more:
        return Change(plan, None)
    begins_anew = definition.cadence != schedule.cadence or _is_dormant(schedule)
    keeps_missed = schedule.paused is not None and not begins_anew
    origin: dict[str, Any] = {}
    if touch is None:
        origin = {"defined_by": defined_by, "definition_version": definition_version}
        origin |= {"definition_hash": definition_hash(definition), "defined": _hand(by, now)}
    updated = replace(
        schedule,
        definition=definition,
        version=schedule.version + 1,
        cursor=schedule.cursor if keeps_missed else max(now, schedule.cursor),
        cadence_since=now if begins_anew else schedule.cadence_since,
        deleted=None,
        touched=touch,
        **origin,
    )
    return Change(plan, updated)


def decide_pause(
    schedule: Schedule, actor: Actor, now: datetime, reason: str | None = None
) -> Schedule | None:
    """No more occurrences until it is resumed. Pausing twice changes nothing."""
    if schedule.paused is not None:
        return None
    touch = Touch(by=actor, at=now, reason=reason)
    return replace(schedule, paused=touch, version=schedule.version + 1)


def decide_resume(schedule: Schedule, now: datetime) -> Schedule | None:
    """Go on. The cursor stays, so that the missed time is treated by the misfire policy."""
    paused = schedule.paused
    if paused is None:
        return None
    pause = Pause(since=paused.at, until=max(now, paused.at), by=paused.by, reason=paused.reason)
    return replace(schedule, paused=None, last_pause=pause, version=schedule.version + 1)


def decide_delete(
    schedule: Schedule, actor: Actor, now: datetime, reason: str | None = None
) -> Schedule | None:
    """No more occurrences. The record stays, for the history of those it had."""
    if schedule.deleted is not None:
        return None
    touch = Touch(by=actor, at=now, reason=reason)
    return replace(schedule, deleted=touch, version=schedule.version + 1)


def _settled(
    schedule: Schedule, definition: Definition, now: datetime, runs: Sequence[Run]
) -> Plan | None:
    """What the old definition still has to say about the time until now."""
    if schedule.is_live:
        return decide_occurrences(schedule, now, runs)
    if _is_dormant(schedule) or definition.cadence == schedule.cadence or now <= schedule.cursor:
        return None
    return Plan(
        expected_version=schedule.version,
        expected_cursor=schedule.cursor,
        cursor=now,
        spans=record_span(schedule, schedule.cursor, now, SkipReason.CHANGED, now),
    )


def _hand(by: Actor | None, now: datetime) -> Touch | None:
    return None if by is None else Touch(by=by, at=now)


def _is_dormant(schedule: Schedule) -> bool:
    """Neither live nor paused: its time is not missed time."""
    return schedule.deleted is not None or not schedule.definition.enabled
