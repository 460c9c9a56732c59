"""When a schedule runs, as a value: `cron(…)`, `every(…)` or `at(…)`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TypeVar, assert_never
from zoneinfo import ZoneInfo

import msgspec

from perdure.core.retry import LONGEST
from perdure.core.schedule.cron import parse_cron
from perdure.core.schedule.zone import EPOCH, Fold, check_zone
from perdure.core.values import Instant, in_utc
from perdure.core.wording import in_words
from perdure.errors import InvalidInput

SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_JITTER = timedelta(days=1)
NO_TIME = timedelta(0)

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class Gap(StrEnum):
    """What becomes of a wall clock time that clocks turned forward have jumped over."""

    FIRST_VALID = "first_valid"
    SKIP = "skip"


class Cron(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="cron"):
    """Whenever the clock on the wall in `tz` matches, between `start` and `end`, both included."""

    expression: str
    tz: str = "UTC"
    gap: Gap = Gap.FIRST_VALID
    fold: Fold = Fold.FIRST
    start: Instant | None = None
    end: Instant | None = None
    jitter: timedelta = NO_TIME


class Interval(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="interval"):
    """At the anchor and every multiple of `length` before and after it, between `start` and `end`.

    Without an anchor `start` is one; without a start, 1970-01-01T00:00:00Z. So it never drifts,
    and every machine and every restart counts from the same instant.
    """

    length: timedelta
    anchor: Instant | None = None
    start: Instant | None = None
    end: Instant | None = None
    jitter: timedelta = NO_TIME

    @property
    def phase(self) -> datetime:
        return (self.anchor or self.start or EPOCH).astimezone(UTC)


class Once(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="once"):
    """At one instant and never again."""

    instant: Instant
    jitter: timedelta = NO_TIME


Cadence = Cron | Interval | Once


def cron(
    expression: str,
    *,
    tz: str | tzinfo = "UTC",
    gap: str = Gap.FIRST_VALID,
    fold: str = Fold.FIRST,
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: timedelta | float = 0,
) -> Cron:
    """A schedule by the clock on the wall: `cron("0 9 * * MON-FRI", tz="Europe/Berlin")`.

    Five fields, or six with seconds first; or `@hourly`, `@daily` and their like. `gap` and
    `fold` say what happens to fixed times when clocks change. Raises InvalidInput.
    """
    made = Cron(
        expression=" ".join(_text(expression, "cron").split()),
        tz=_zone_name(tz),
        gap=_choice(Gap, gap, "gap"),
        fold=_choice(Fold, fold, "fold"),
        start=_instant(start, "start"),
        end=_instant(end, "end"),
        jitter=_duration(jitter, "jitter"),
    )
    check_cadence(made)
    return made


def every(
    interval: timedelta | float | None = None,
    *,
    weeks: float = 0,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    anchor: datetime | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: timedelta | float = 0,
) -> Interval:
    """A schedule by elapsed time: `every(minutes=5)`, `every(timedelta(hours=2))`, `every(30)`."""
    try:
        parts = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidInput("every", f"is not a length of time: {error}") from error
    if interval is not None and parts:
        raise InvalidInput("every", "give a length of time or its parts, not both")
    made = Interval(
        length=parts if interval is None else _duration(interval, "every"),
        anchor=_instant(anchor, "anchor"),
        start=_instant(start, "start"),
        end=_instant(end, "end"),
        jitter=_duration(jitter, "jitter"),
    )
    check_cadence(made)
    return made


def at(instant: datetime, *, jitter: timedelta | float = 0) -> Once:
    """A schedule for one instant, which must say its time zone."""
    if not isinstance(instant, datetime):
        raise InvalidInput("at", f"must be a datetime, not {instant!r}")
    made = Once(instant=in_utc(instant, "at"), jitter=_duration(jitter, "jitter"))
    check_cadence(made)
    return made


def check_cadence(cadence: Cadence) -> None:
    """Raises InvalidInput, naming the field; also for values not made by the functions above."""
    if not NO_TIME <= cadence.jitter <= LONGEST_JITTER:
        problem = f"must be from 0 s to {in_words(LONGEST_JITTER)}, not {in_words(cadence.jitter)}"
        raise InvalidInput("jitter", problem)
    match cadence:
        case Cron():
            parse_cron(cadence.expression)
            check_zone(cadence.tz)
            _check_window(cadence)
        case Interval():
            if not SHORTEST_INTERVAL <= cadence.length <= LONGEST:
                most = f"must be from {in_words(SHORTEST_INTERVAL)} to {in_words(LONGEST)}"
                raise InvalidInput("every", f"{most}, not {in_words(cadence.length)}")
            in_utc(cadence.anchor or EPOCH, "anchor")
            _check_window(cadence)
        case Once():
            in_utc(cadence.instant, "at")
        case _:
            assert_never(cadence)


def _check_window(cadence: Cron | Interval) -> None:
    start = None if cadence.start is None else in_utc(cadence.start, "start")
    end = None if cadence.end is None else in_utc(cadence.end, "end")
    if start is not None and end is not None and end < start:
        raise InvalidInput("end", f"must not lie before start, {start.isoformat()}")


def _text(value: str, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, f"must be text, not {value!r}")
    return value


def _zone_name(tz: str | tzinfo) -> str:
    if tz is UTC:
        return "UTC"
    if isinstance(tz, ZoneInfo) and tz.key is not None:
        return tz.key
    if not isinstance(tz, str):
        raise InvalidInput("tz", f"must be an IANA name such as 'Europe/Berlin', not {tz!r:.80}")
    return tz


def _choice(choices: type[ChoiceT], value: str, field: str) -> ChoiceT:
    try:
        return choices(value)
    except ValueError as error:
        raise InvalidInput(field, f"{value!r} is not one of {', '.join(choices)}") from error


def _instant(value: datetime | None, field: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidInput(field, f"must be a datetime, not {value!r}")
    return in_utc(value, field)


def _duration(value: timedelta | float, field: str) -> timedelta:
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, bool):
            raise TypeError("a flag")
        return timedelta(seconds=value)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(field, f"{value!r} is not seconds or a timedelta") from error
