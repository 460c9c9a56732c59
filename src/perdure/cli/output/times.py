"""Instants and lengths of time, as people write them and as they read them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from perdure.cli.output.answer import Misused

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from perdure.core.schedule import Cadence


def duration_of(text: str, what: str) -> timedelta:
    """A length of time."""
    from perdure.core.filter_terms import parse_duration

    found = parse_duration(text)
    if found is None:
        raise Misused(f"{what} must be like 90d, 12h or 30m, not {text!r}")
    return found


def instant_of(text: str, what: str, zone: str | None = None) -> datetime:
    """An instant; without an offset it is what the clock on the wall in `zone` says, if any."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise Misused(f"{what} must be like 2030-01-31T09:00:00Z, not {text!r}") from None
    if instant.tzinfo or zone is None:
        return instant
    return instant.replace(tzinfo=_place(zone))


def end_of(text: str, what: str, zone: str) -> datetime:
    """An instant as well; but a date is the whole day, so this is its last moment."""
    instant = instant_of(text, what, zone)
    if len(text) > len("2030-01-31"):
        return instant
    return instant + timedelta(days=1, microseconds=-1)  # on the wall, however long that day is


def zone_of(cadence: Cadence) -> str:
    return getattr(cadence, "tz", "UTC")


class LocalTime(NamedTuple):
    """An instant on the wall, and what about the clock there is to know."""

    instant: datetime
    local: datetime
    note: str

    @property
    def wall(self) -> str:
        return self.local.strftime("%a %Y-%m-%d %H:%M:%S %z")


def on_the_wall(times: list[datetime], zone: str, since: datetime) -> list[LocalTime]:
    """These times in a zone; of each, whether clocks were turned since the one before."""
    place, before, found = _place(zone), since, []
    for time in times:
        notes = [note for note in (_turned(before, time, place), _twice(time, place)) if note]
        found.append(LocalTime(time, time.astimezone(place), "; ".join(notes)))
        before = time
    return found


def _place(zone: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # other commands must not wait for it

    return ZoneInfo(zone)


def _turned(before: datetime, after: datetime, zone: ZoneInfo) -> str:
    change = _offset(after.astimezone(zone)) - _offset(before.astimezone(zone))
    if not change:
        return ""
    way = "forward" if change > timedelta(0) else "back"
    return f"clocks were turned {way} by {abs(change)}".removesuffix(":00")


def _twice(time: datetime, zone: ZoneInfo) -> str:
    local = time.astimezone(zone)
    if _offset(local.replace(fold=0)) <= _offset(local.replace(fold=1)):
        return ""
    return "second of two" if local.fold else "first of two"


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)
