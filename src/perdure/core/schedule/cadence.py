"""When a schedule runs, as a value: `cron(…)`, `every(…)` or `at(…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Any, TypeVar, assert_never
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from perdure.core.json_text import Instant, in_utc
from perdure.core.run.backoff import LONGEST
from perdure.core.schedule.clock_changes import EPOCH, Fold, check_zone
from perdure.core.schedule.cron import parse_cron
from perdure.core.text import in_words
from perdure.errors import InvalidInput

SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_JITTER = timedelta(days=1)
NO_TIME = timedelta(0)

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class Gap(StrEnum):
    """What becomes of a wall clock time that clocks turned forward have jumped over."""

    FIRST_VALID = "first_valid"
    SKIP = "skip"


class Cron(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag_field="kind", tag="cron"):
    """Whenever the clock on the wall in `tz` matches, between `start` and `end`, both included."""

    expression: str
    tz: str = "UTC"
    gap: Gap = Gap.FIRST_VALID
    fold: Fold = Fold.FIRST
    start: Instant | None = None
    end: Instant | None = None
    jitter: timedelta = NO_TIME


class Interval(
    msgspec.Struct, frozen=True, kw_only=True, dict=True, tag_field="kind", tag="interval"
):
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


class Once(msgspec.Struct, frozen=True, kw_only=True, dict=True, tag_field="kind", tag="once"):
    """At one instant and never again."""

    instant: Instant
    jitter: timedelta = NO_TIME


Cadence = Cron | Interval | Once
CadenceT = TypeVar("CadenceT", Cron, Interval, Once)


def cron(
    expression: str,
    *,
    tz: str | tzinfo | UnsetType = UNSET,
    gap: str | UnsetType = UNSET,
    fold: str | UnsetType = UNSET,
    start: datetime | UnsetType | None = UNSET,
    end: datetime | UnsetType | None = UNSET,
    jitter: timedelta | float | UnsetType = UNSET,
) -> Cron:
    """A schedule by the clock on the wall: `cron("0 9 * * MON-FRI", tz="Europe/Berlin")`.

    Five fields, or six with seconds first; or `@hourly`, `@daily` and their like. `gap` and
    `fold` say what happens to fixed times when clocks change. In an update of a schedule, options
    that are not given stay; elsewhere `tz` is UTC, `gap` first_valid and `fold` first. Raises
    InvalidInput.
    """
    options = {"tz": tz, "gap": gap, "fold": fold, "start": start, "end": end, "jitter": jitter}
    return _make(Cron, options, expression=" ".join(_text(expression, "cron").split()))


def every(
    interval: timedelta | float | None = None,
    *,
    weeks: float = 0,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    anchor: datetime | UnsetType | None = UNSET,
    start: datetime | UnsetType | None = UNSET,
    end: datetime | UnsetType | None = UNSET,
    jitter: timedelta | float | UnsetType = UNSET,
) -> Interval:
    """A schedule by elapsed time: `every(minutes=5)`, `every(timedelta(hours=2))`, `every(30)`."""
    try:
        parts = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidInput("every", f"is not a length of time: {error}") from error
    if interval is not None and parts:
        raise InvalidInput("every", "give a length of time or its parts, not both")
    length = parts if interval is None else _duration(interval, "every")
    options = {"anchor": anchor, "start": start, "end": end, "jitter": jitter}
    return _make(Interval, options, length=length)


def at(instant: datetime, *, jitter: timedelta | float | UnsetType = UNSET) -> Once:
    """A schedule for one instant, which must say its time zone."""
    if not isinstance(instant, datetime):
        raise InvalidInput("at", f"must be a datetime, not {instant!r}")
    return _make(Once, {"jitter": jitter}, instant=in_utc(instant, "at"))


def _make(kind: type[CadenceT], options: Mapping[str, Any], **required: Any) -> CadenceT:
    """Return a checked cadence that knows which options were given: see `named_options`."""
    given = {name: it for name, it in options.items() if it is not UNSET}
    made = kind(**required, **{name: _OPTIONS[name](it, name) for name, it in given.items()})
    check_cadence(made)
    made.__dict__["named"] = frozenset(given)
    return made


def named_options(cadence: Cadence) -> frozenset[str]:
    """Return the options that were given to `cron`, `every` or `at`; all of a cadence that none
    of them made."""
    options = _OPTIONS.keys() & set(cadence.__struct_fields__)
    return frozenset(cadence.__dict__.get("named", options))


def merge_cadence(new: Cadence, old: Cadence) -> Cadence:
    """Return `new` with the options that it does not name as `old` has them, if both are of one
    kind."""
    if type(new) is not type(old):
        return new
    options = _OPTIONS.keys() & set(new.__struct_fields__)
    return replace(new, **{name: getattr(old, name) for name in options - named_options(new)})


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


_OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "tz": lambda value, field: _zone_name(value),
    "gap": lambda value, field: _choice(Gap, value, field),
    "fold": lambda value, field: _choice(Fold, value, field),
    "anchor": _instant,
    "start": _instant,
    "end": _instant,
    "jitter": _duration,
}
"""What may be given besides the expression, the length or the instant, and how it is checked."""
