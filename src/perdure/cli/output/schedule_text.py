"""Schedules as one reads them: their states, their next times, and what became of the last."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from perdure.cli.database_command import why
from perdure.cli.output.table import pairs, shown, table
from perdure.cli.output.times import on_the_wall, zone_of

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.core.run.run import Run
    from perdure.core.schedule import Cadence, Schedule, Touch
    from perdure.engine.schedules.history import Occurrences


def state_of(schedule: Schedule, tasks: Collection[str] | None = None) -> str:
    """In a word; `tasks` are those that are known, if somebody has looked."""
    if schedule.deleted is not None:
        return "deleted"
    if not schedule.definition.enabled:
        return "disabled"
    if schedule.paused is not None:
        return "paused"
    if schedule.next_at is None:
        return "over"
    if tasks is not None and schedule.definition.task not in tasks:
        return f"waits for task {schedule.definition.task}"
    return "live"


def listed(found: list[Schedule], tasks: Collection[str], now: datetime, *, deleted: bool) -> str:
    """A line each."""
    if deleted:
        gone = [(it.id, it.definition.task, *_deletion(it)) for it in found]
        return table(("NAME", "TASK", "DELETED", "BY", "WHY"), gone)
    rows = [
        (
            *(it.id, it.definition.task, in_words(it.cadence), state_of(it, tasks)),
            *(_next(it.next_at, now), it.defined_by),
        )
        for it in found
    ]
    return table(("NAME", "TASK", "CADENCE", "STATE", "NEXT", "DEFINED BY"), rows)


def _deletion(schedule: Schedule) -> tuple[Any, ...]:
    touch = schedule.deleted
    assert touch is not None
    return touch.at, touch.by.id or touch.by.type, touch.reason


def _next(time: datetime | None, now: datetime) -> Any:
    """A time that has come, and that nobody has decided, is said to be so."""
    return f"due since {shown(time)}" if time is not None and time <= now else time


def story(
    schedule: Schedule,
    said: dict[str, Any],
    coming: list[datetime],
    last: Occurrences,
    tasks: Collection[str],
) -> str:
    parts = [pairs(_facts(schedule, said, tasks))]
    if coming:
        parts.append(f"NEXT\n{times_of(coming, schedule)}")
    if last.runs:
        rows = [(_time(it), it.id, it.status, _why(it)) for it in last.runs]
        parts.append(table(("LAST", "RUN", "STATUS", "WHY"), rows))
    if last.spans:
        spans = [(it.first, it.last, it.count, it.reason) for it in last.spans]
        parts.append(table(("SKIPPED FROM", "TO", "TIMES", "WHY"), spans))
    return "\n\n".join(parts)


def _time(run: Run) -> Any:
    return run.source.nominal_time or f"{shown(run.created_at)} by hand"


def _why(run: Run) -> str:
    """Why it is there, if not by the cadence; and why it is as it is."""
    from perdure.core.explain.origin import given_by

    return "; ".join(part for part in (given_by(run), why(run)) if part)


def _facts(schedule: Schedule, said: dict[str, Any], tasks: Collection[str]) -> dict[str, Any]:
    from perdure.engine.manifests.render import added

    return {
        "name": schedule.id,
        "state": state_of(schedule, tasks),
        **{field.field: field.shown for field in added(said)},
        "defined": _hand(f"by {schedule.defined_by}", schedule.defined),
        "changed": schedule.touched and _hand("by hand", schedule.touched),
        "paused": schedule.paused and _hand("", schedule.paused),
        "deleted": schedule.deleted and _hand("", schedule.deleted),
        "created": schedule.created_at,
        "decided until": schedule.cursor,
    }


def _hand(how: str, touch: Touch | None) -> str:
    if touch is None:
        return how
    who = f"{touch.by.type} {touch.by.id or ''}".strip()
    why = f": {touch.reason}" if touch.reason else ""
    return f"{how}, {who} at {shown(touch.at)}{why}".lstrip(", ")


def times_of(times: list[datetime], schedule: Schedule, since: datetime | None = None) -> str:
    """In its zone and in UTC; if that is its zone, once."""
    zone = zone_of(schedule.cadence)
    found = on_the_wall(times, zone, times[0] if since is None else since)
    if zone == "UTC":
        return table(("UTC",), [(time.wall.removesuffix(" +0000"),) for time in found])
    rows = [(time.wall, time.instant, time.note or " ") for time in found]
    lines = table((zone.upper(), "UTC", ""), rows).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def in_words(cadence: Cadence) -> str:
    from perdure.engine.manifests.render import say_cadence

    said = say_cadence(cadence)
    kind, when = next(iter(said.items()))
    zone = f" {said['tz']}" if "tz" in said else ""
    return f"{kind} {when}{zone}"


def occurrences_data(found: Occurrences) -> dict[str, Any]:
    runs = [
        {
            "time": it.source.nominal_time,
            "run": it.id,
            "status": it.status,
            "reason": it.reason,
            "asked_for": it.source.reason,
            "by": it.created_by,
            "created_at": it.created_at,
        }
        for it in found.runs
    ]
    return {"last_occurrences": runs, "skipped_spans": found.spans}


def data_of(schedule: Schedule, tasks: Collection[str] | None = None) -> dict[str, Any]:
    """A schedule as JSON: its payload as a value."""
    state = state_of(schedule, tasks)
    data = plain({"name": schedule.id, "state": state, "next_at": schedule.next_at})
    data.update(plain(schedule))
    data["definition"]["payload"] = data["definition"].pop("payload_json")
    return data  # type: ignore[no-any-return]  # it is one


def plain(value: Any) -> Any:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(value))
