"""Cron expressions: five fields, or six with seconds first, read into sets of numbers.

The rules are those of Debian's cron, with names, `L`, `W`, `#`, `?` and `@daily` beside them. Every
refusal names the field and the value. What is read here knows nothing of time zones: see `wall`
for the days and times it means, and `times` for the instants.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from perdure.errors import InvalidInput

MAX_LENGTH = 256
LAST = -1
"""The ordinal of a weekday's last appearance in a month, as in `5L`."""

EVERY_KIND_OF_YEAR = range(2000, 2028)
"""28 years hold each weekday for 1 January, leap and common: whatever they lack never happens."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int] = {}

    @property
    def size(self) -> int:
        return 7 if self is _WEEKDAY else self.high - self.low + 1


def _numbered(words: str, first: int) -> dict[str, int]:
    return {word: number for number, word in enumerate(words.split(), first)}


_SECOND = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of month", 1, 31)
_MONTHS = _numbered("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC", 1)
_MONTH = _Field("month", 1, 12, _MONTHS)
_WEEKDAY = _Field("day of week", 0, 7, _numbered("SUN MON TUE WED THU FRI SAT", 0))
_FIELDS = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)

AT_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class CronFields:
    """What an expression means. Weekdays count from Sunday, 0.

    Compared by identity: `parse_cron` gives one object for one expression, so that caches keyed
    by it need not hash its sets.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    last_day: bool
    last_workday: bool
    near_workdays: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]
    either_day: bool
    follows_elapsed_time: bool


class _Problem(Exception):
    """What is wrong with one field, without saying which."""


class _Missing(_Problem):
    """There is nothing where a number should be."""


@lru_cache(maxsize=4096)
def parse_cron(expression: str) -> CronFields:
    """Raises InvalidInput, pointing at the field; also for a day that never comes."""
    texts = _split(expression)
    shift = 1 if len(texts) == len(_FIELDS) else 0
    if not shift:
        texts = ["0", *texts]
    found = []
    for place, (field, text) in enumerate(zip(_FIELDS, texts, strict=True), shift):
        try:
            found.append(list(_items(text, field)))
        except _Problem as problem:
            raise _refusal(expression, f"field {place} ({field.name}): {problem}") from None
    fields = _fields(texts, found)
    if not any(_month_has_a_day(fields, year) for year in EVERY_KIND_OF_YEAR):
        never = f"no month of field {3 + shift + 1} ever has such a day"
        raise _refusal(expression, f"field {3 + shift} (day of month): {never}")
    return fields


def days_of_month(fields: CronFields, year: int, month: int) -> list[int]:
    """The days that match, in order."""
    if month not in fields.months:
        return []
    first, length = calendar.monthrange(year, month)
    by_date = _by_date(fields, first, length)
    by_weekday = _by_weekday(fields, first, length)
    return sorted(by_date | by_weekday if fields.either_day else by_date & by_weekday)


def _split(expression: str) -> list[str]:
    if len(expression) > MAX_LENGTH:
        raise InvalidInput("cron", f"must not be longer than {MAX_LENGTH} characters")
    texts = expression.upper().split()
    if len(texts) == 1 and texts[0].startswith("@"):
        return _named(expression, texts[0].lower()).split()
    if texts and texts[0] == "@EVERY":
        raise _refusal(expression, "is no time on a clock; use every(…), e.g. every(minutes=5)")
    if texts and "TZ=" in texts[0]:
        raise _refusal(expression, "names a zone; say it apart, e.g. tz='Europe/Berlin'")
    if len(texts) not in (5, 6):
        wanted = "minute, hour, day of month, month, day of week; or 6 with the second first"
        none = "; there is none for years" if len(texts) == 7 else ""
        raise _refusal(expression, f"has {len(texts)} fields; it needs 5 ({wanted}){none}")
    if len(texts) == len(_FIELDS) and _is_year(texts[-1]):
        six = "with six fields the second comes first, and there is none for years"
        raise _refusal(expression, f"field 6 (day of week): {texts[-1]} looks like a year; {six}")
    return texts


def _is_year(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) == 4


def _named(expression: str, name: str) -> str:
    if name not in AT_NAMES:
        raise _refusal(expression, f"is not one of {', '.join(AT_NAMES)}")
    return AT_NAMES[name]


def _refusal(expression: str, problem: str) -> InvalidInput:
    return InvalidInput("cron", f"{expression!r}: {problem}")


_Item = range | tuple[int, int] | str
"""A range of numbers; a weekday and which of the month; or `L`, `LW`, `15W`."""


def _fields(texts: list[str], found: list[list[_Item]]) -> CronFields:
    seconds, minutes, hours, days, months, weekdays = found
    words = {item for item in days if isinstance(item, str)}
    return CronFields(
        seconds=tuple(sorted(_numbers(seconds))),
        minutes=tuple(sorted(_numbers(minutes))),
        hours=tuple(sorted(_numbers(hours))),
        days=_numbers(days),
        last_day="L" in words,
        last_workday="LW" in words,
        near_workdays=frozenset(int(word[:-1]) for word in words - {"L", "LW"}),
        months=_numbers(months),
        weekdays=frozenset(day % 7 for day in _numbers(weekdays)),
        nth_weekdays=frozenset(item for item in weekdays if isinstance(item, tuple)),
        # Debian's rule: both day fields restrict if either begins with a star, else one suffices.
        either_day=not (texts[3].startswith(("*", "?")) or texts[5].startswith(("*", "?"))),
        follows_elapsed_time=any(text.startswith("*") for text in texts[:3]),
    )


def _numbers(items: list[_Item]) -> frozenset[int]:
    return frozenset(number for item in items if isinstance(item, range) for number in item)


def _items(text: str, field: _Field) -> Iterator[_Item]:
    for item in text.split(","):
        if not item:
            raise _Problem("there is nothing beside a comma")
        try:
            special = _special_day(item, field) or _special_weekday(item, field)
            yield special or _range(item, field)
        except _Missing:
            raise _Problem(f"a number is missing in {item}") from None


def _special_day(item: str, field: _Field) -> str | None:
    if field is not _DAY:
        return None
    if item.startswith("L-"):
        raise _Problem(f"{item}: days before the last are not known here; L is the last day")
    if item.endswith("W") and item != "LW":
        return f"{_number(item[:-1], field)}W"
    return item if item in ("L", "LW") else None


def _special_weekday(item: str, field: _Field) -> tuple[int, int] | None:
    if field is not _WEEKDAY:
        return None
    if item == "L":
        raise _Problem("L needs a day before it: 5L is the last Friday of the month")
    if item.endswith("L"):
        return _number(item[:-1], field) % 7, LAST
    day, sign, nth = item.partition("#")
    if not sign:
        return None
    if nth not in ("1", "2", "3", "4", "5"):
        raise _Problem(f"{nth!r} after # is not between 1 and 5")
    return _number(day, field) % 7, int(nth)


def _range(item: str, field: _Field) -> range:
    body, slash, step = item.partition("/")
    low, high = _bounds(body, field, is_open=bool(slash))
    return range(low, high + 1, _step(step, field) if slash else 1)


def _bounds(body: str, field: _Field, *, is_open: bool) -> tuple[int, int]:
    if body == "*" or (body == "?" and field in (_DAY, _WEEKDAY)):
        return field.low, field.low + field.size - 1
    first, dash, last = body.partition("-")
    low = _number(first, field)
    if not dash:
        return low, field.high if is_open else low
    high = 7 if field is _WEEKDAY and last == "SUN" else _number(last, field)
    if high < low:
        both = f"{first}-{field.high},{field.low}-{last}"
        raise _Problem(f"{body} runs backwards; write {both}")
    return low, high


def _number(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names[text]
    if not text:
        raise _Missing
    if not (text.isascii() and text.isdigit()):
        names = f" or one of {' '.join(field.names)}" if field.names else ""
        raise _Problem(f"{text!r} is not a number{names}")
    number = int(text)
    if not field.low <= number <= field.high:
        raise _Problem(f"{text} is not between {field.low} and {field.high}")
    return number


def _step(text: str, field: _Field) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _Problem(f"{text!r} after / is not a number")
    step = int(text)
    if not 1 <= step <= field.size:
        raise _Problem(f"a step of {text} is not between 1 and {field.size}")
    return step


def _month_has_a_day(fields: CronFields, year: int) -> bool:
    return any(days_of_month(fields, year, month) for month in fields.months)


def _by_date(fields: CronFields, first: int, length: int) -> set[int]:
    days = {day for day in fields.days if day <= length}
    if fields.last_day:
        days.add(length)
    if fields.last_workday:
        days.add(_workday_near(length, first, length))
    return days | {
        _workday_near(day, first, length) for day in fields.near_workdays if day <= length
    }


def _by_weekday(fields: CronFields, first: int, length: int) -> set[int]:
    return {
        day
        for day in range(1, length + 1)
        if (weekday := _weekday(day, first)) in fields.weekdays
        or (weekday, (day + 6) // 7) in fields.nth_weekdays
        or (day + 7 > length and (weekday, LAST) in fields.nth_weekdays)
    }


def _weekday(day: int, first: int) -> int:
    """`first` is what `calendar` says of the month's first day, counted from Monday."""
    return (first + day) % 7


def _workday_near(day: int, first: int, length: int) -> int:
    """Monday to Friday nearest to `day`, never outside its month."""
    match _weekday(day, first):
        case 6:
            return day - 1 if day > 1 else day + 2
        case 0:
            return day + 1 if day < length else day - 2
        case _:
            return day
