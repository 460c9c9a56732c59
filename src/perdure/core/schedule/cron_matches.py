"""Which wall clock times match a cron expression: the next, the last, and how many.

A wall time is counted in seconds from 1970-01-01T00:00:00 on the clock on the wall, whatever the
zone. Nothing here walks from one match to the next: the n-th time of a day is computed, and days
are looked up by the month. So a search over years costs as little as one over minutes.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import date
from functools import lru_cache

from perdure.core.schedule.cron import CronFields, days_of_month

DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()


def first_match(fields: CronFields, start: int, stop: int) -> int | None:
    """The first matching wall time in `[start, stop)`."""
    day, time = divmod(start, DAY)
    if _matches(fields, day) and (rank := _rank(fields, time)) < _per_day(fields):
        found = day * DAY + _select(fields, rank)
    else:
        later = _next_day(fields, day + 1, stop)
        if later is None:
            return None
        found = later * DAY + _select(fields, 0)
    return found if found < stop else None


def last_match(fields: CronFields, start: int, stop: int) -> int | None:
    """The last matching wall time in `[start, stop)`."""
    day, time = divmod(stop, DAY)
    if _matches(fields, day) and (rank := _rank(fields, time)):
        found = day * DAY + _select(fields, rank - 1)
    else:
        earlier = _previous_day(fields, day - 1, start)
        if earlier is None:
            return None
        found = earlier * DAY + _select(fields, _per_day(fields) - 1)
    return found if found >= start else None


def count_matches(fields: CronFields, start: int, stop: int) -> int:
    """How many wall times in `[start, stop)` match."""
    (first, time), (last, end_time) = divmod(start, DAY), divmod(stop, DAY)
    total = _count_days(fields, first, last) * _per_day(fields)
    if _matches(fields, first):
        total -= _rank(fields, time)
    if _matches(fields, last):
        total += _rank(fields, end_time)
    return total


def _per_day(fields: CronFields) -> int:
    return len(fields.hours) * len(fields.minutes) * len(fields.seconds)


def _rank(fields: CronFields, time: int) -> int:
    """How many matching times of day lie before `time`."""
    rank = 0
    for values, value in (
        (fields.hours, time // 3600),
        (fields.minutes, time // 60 % 60),
        (fields.seconds, time % 60),
    ):
        place = bisect_left(values, value)
        rank = rank * len(values) + place
        if place == len(values) or values[place] != value:
            # No time has this beginning, so what comes after it does not matter.
            return rank * _finer(fields, values)
    return rank


def _finer(fields: CronFields, values: tuple[int, ...]) -> int:
    """How many times there are for each value of this field."""
    if values is fields.hours:
        return len(fields.minutes) * len(fields.seconds)
    return len(fields.seconds) if values is fields.minutes else 1


def _select(fields: CronFields, rank: int) -> int:
    """The matching time of day that has `rank` before it."""
    rank, second = divmod(rank, len(fields.seconds))
    hour, minute = divmod(rank, len(fields.minutes))
    return fields.hours[hour] * 3600 + fields.minutes[minute] * 60 + fields.seconds[second]


def _matches(fields: CronFields, day: int) -> bool:
    return day in _days(fields, _month(day))


def _next_day(fields: CronFields, day: int, stop: int) -> int | None:
    for month in range(_month(day), _month(stop // DAY) + 1):
        days = _days(fields, month)
        place = bisect_left(days, day)
        if place < len(days):
            return days[place]
    return None


def _previous_day(fields: CronFields, day: int, start: int) -> int | None:
    for month in range(_month(day), _month(start // DAY) - 1, -1):
        days = _days(fields, month)
        place = bisect_left(days, day + 1)
        if place:
            return days[place - 1]
    return None


def _count_days(fields: CronFields, first: int, last: int) -> int:
    """Matching days in `[first, last)`."""
    months = (_days(fields, month) for month in range(_month(first), _month(last) + 1))
    return sum(bisect_left(days, last) - bisect_left(days, first) for days in months)


def _month(day: int) -> int:
    """Months are numbered without a break from year to year."""
    then = date.fromordinal(day + _EPOCH)
    return then.year * 12 + then.month - 1


@lru_cache(maxsize=16_384)
def _days(fields: CronFields, month: int) -> tuple[int, ...]:
    year, index = divmod(month, 12)
    zeroth = date(year, index + 1, 1).toordinal() - _EPOCH - 1
    return tuple(zeroth + day for day in days_of_month(fields, year, index + 1))
