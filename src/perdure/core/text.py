"""Instants and lengths of time as sentences have them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_UNITS = (
    (timedelta(days=365), "year", "years"),
    (timedelta(days=1), "day", "days"),
    (timedelta(hours=1), "h", "h"),
    (timedelta(minutes=1), "min", "min"),
)


def rfc3339(instant: datetime) -> str:
    """An instant in UTC as it stands in keys: with a fraction only if it has one."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def clock_in(zone: str, instant: datetime) -> str:
    """What the clock on the wall says there, and which instant that is."""
    if zone == "UTC":
        return rfc3339(instant)
    from zoneinfo import ZoneInfo  # here: whoever only triggers needs no time zones

    local = instant.astimezone(ZoneInfo(zone))
    seconds = ":%S" if local.second else ""
    return f"{local.strftime(f'%Y-%m-%d %H:%M{seconds}')} {zone} ({rfc3339(instant)})"


def in_words(length: timedelta) -> str:
    """`90 s` is `1 min 30 s`; a year is 365 days."""
    if length < timedelta(0):
        return f"-{in_words(-length)}"
    said, rest = [], length
    for unit, one, several in _UNITS:
        number, rest = divmod(rest, unit)
        said += [f"{number} {one if number == 1 else several}"] if number else []
    if rest or not said:
        said.append(f"{rest.total_seconds():.6f}".rstrip("0").rstrip(".") + " s")
    return " ".join(said)
