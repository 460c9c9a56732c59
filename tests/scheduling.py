"""Builders for schedules and their runs. `NINE` is a nominal time of the hourly one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from builders import OPERATOR, PAYLOAD, TASK, a_run, run_id
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, Source, SourceType
from perdure.core.schedule import (
    Definition,
    Schedule,
    cron,
    decide_delete,
    new_schedule,
    occurrence_key,
)

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
HOURLY = cron("0 * * * *")
EACH_MINUTE = cron("* * * * *")
EACH_SECOND = cron("* * * * * *")


def a_definition(**fields: Any) -> Definition:
    defaults: dict[str, Any] = {"id": "digest", "task": TASK, "cadence": HOURLY}
    return Definition(**(defaults | {"payload_json": PAYLOAD} | fields))


def a_schedule(since: datetime = NINE, **fields: Any) -> Schedule:
    """A schedule that has decided everything up to `since`; `fields` are its definition's."""
    return new_schedule(a_definition(**fields), since)


def deleted(schedule: Schedule, at: datetime = NINE, reason: str | None = None) -> Schedule:
    """The schedule after somebody deleted it; what was due then is not looked at."""
    change = decide_delete(schedule, OPERATOR, at, reason=reason)
    assert change is not None
    assert change.schedule is not None
    return change.schedule


def an_occurrence(status: Status = Status.QUEUED, nominal: datetime = NINE, **source: Any) -> Run:
    """The hourly schedule's run of `nominal`; with other `source` fields, of another origin."""
    said: dict[str, Any] = {"type": SourceType.SCHEDULE, "schedule_id": "digest"}
    number = int(nominal.timestamp())
    return a_run(
        status,
        run_id=run_id(number + len(source)),
        at=nominal,
        source=Source(**(said | {"nominal_time": nominal} | source)),
        occurrence_key=occurrence_key("digest", nominal),
    )
