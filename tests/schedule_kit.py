"""Schedules in a storage: what their tests say all the time, in one word each."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

import raw
from builders import OPERATOR
from perdure import App
from perdure.core.decide import NewRun
from perdure.core.run.run import Run
from perdure.core.schedule import (
    Making,
    Plan,
    Schedule,
    ScheduleStep,
    advancing,
    creating,
    decide_occurrences,
    encode_schedule,
)
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.storage.contract.schedules import Stepped
from perdure.storage.contract.storage import Storage
from scheduling import NINE, a_schedule


def making(schedule: Schedule, now: datetime = NINE) -> Making:
    return Making(
        task=NewRun(task=schedule.definition.task),
        run_id=make_run_id,
        commit_id=make_token,
        now=now,
    )


async def put(storage: Storage, *steps: ScheduleStep) -> None:
    """Store, and insist that it worked."""
    outcomes = await storage.put_schedules(steps)
    assert all(isinstance(outcome, Stepped) for outcome in outcomes), outcomes


async def scheduled(storage: Storage, since: datetime = NINE, **fields: Any) -> Schedule:
    """A stored schedule that has decided everything up to `since`."""
    schedule = a_schedule(since, **fields)
    await put(storage, creating(schedule, OPERATOR))
    return schedule


def plan_of(schedule: Schedule, now: datetime, runs: list[Run] | None = None) -> Plan:
    plan = decide_occurrences(schedule, now, runs or [])
    assert plan is not None
    return plan


def due_step(schedule: Schedule, now: datetime, runs: list[Run] | None = None) -> ScheduleStep:
    """What a scheduler would store at `now`."""
    return advancing(schedule, plan_of(schedule, now, runs), making(schedule, now))


async def rewound(app: App, name: str, by: timedelta) -> Schedule:
    """As if it were so old, and no scheduler had ever come. By force: no cursor goes back."""
    past = await app.storage.now() - by
    schedule = replace(
        await app.schedules.get(name), cursor=past, created_at=past, cadence_since=past
    )
    body = encode_schedule(schedule).replace("'", "''")
    places = f"cursor = {_literal(app, past)}, next_at = {_literal(app, schedule.next_at)}"
    own = f"environment = '{app.environment}' AND name = '{name}'"
    update = f"UPDATE perdure_schedules SET {places}, body = '{body}' WHERE {own}"
    raw.execute(app.url, update)
    return schedule


def _literal(app: App, instant: datetime | None) -> str:
    """An instant, as the app's database spells it."""
    if instant is None:
        return "NULL"
    stored = app.storage.dialect.instant(instant)  # type: ignore[attr-defined]  # of each adapter
    return str(stored) if isinstance(stored, int) else f"'{stored.isoformat()}'"


async def reread(storage: Storage, schedule: Schedule) -> Schedule:
    return (await storage.get_schedules(schedule.environment, [schedule.id]))[schedule.id]


async def runs_of(storage: Storage, schedule: Schedule) -> list[Run]:
    """All its runs with a nominal time, in the order of these."""
    far = NINE.replace(year=2100)
    return await storage.occurrences(
        schedule.environment, schedule.id, NINE.replace(year=2000), far, limit=10_000
    )
