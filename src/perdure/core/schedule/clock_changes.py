"""A time zone as stretches of time between two changes of its clocks.

`zoneinfo` answers what the clock says at an instant, not when it changes; the changes are found by
probing, once for each zone and year.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from perdure.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_YEAR = 2999
"""No search goes further, so that none takes long, and no sum leaves the calendar."""

PROBE = 3 * 86_400
"""No zone has kept a clock for less than twice as long; a test over all of them says so."""

MARGIN = 2 * 86_400
"""More than any clock was ever turned back, so that a year knows of folds beside its edges."""


class Fold(StrEnum):
    """Which of two equal wall clock times counts, when clocks are turned back."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


class Stretch(NamedTuple):
    """Instants `[start, end)` in seconds, with the clock `offset` seconds ahead of UTC.

    `jumped`: how far the clock was turned forward at `start`.
    """

    start: int
    end: int
    offset: int
    jumped: int


class _Change(NamedTuple):
    at: int
    before: int
    after: int


def check_zone(tz: str) -> None:
    """Raises InvalidInput if this machine's time zone data has no such zone."""
    advice = "use an IANA name such as 'Europe/Berlin'"
    if tz == "localtime" or tz.startswith(("posix/", "right/")):
        raise InvalidInput("tz", f"{tz!r} is not one clock on every machine; {advice}")
    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise InvalidInput("tz", f"{tz!r} is not a time zone known here; {advice}") from error


def stretches_between(tz: str, start: int, stop: int, fold: Fold) -> Iterator[Stretch]:
    """The stretches that have an instant in `[start, stop)`, in order, found one by one."""
    for year in range(_year(start), _year(stop - 1) + 1):
        for stretch in stretches(tz, year, fold):
            if stretch.end > start and stretch.start < stop:
                yield stretch


def stretches_backwards(tz: str, start: int, stop: int, fold: Fold) -> Iterator[Stretch]:
    """The same, the latest first."""
    for year in range(_year(stop - 1), _year(start) - 1, -1):
        for stretch in reversed(stretches(tz, year, fold)):
            if stretch.end > start and stretch.start < stop:
                yield stretch


@lru_cache(maxsize=8192)
def stretches(tz: str, year: int, fold: Fold) -> tuple[Stretch, ...]:
    """One year's stretches. What `fold` rules out, one pass through a repeated hour, is in none."""
    begin, end = year_start(year), year_start(year + 1)
    found = []
    for change, following in pairwise(_changes(tz, year)):
        start, stop = change.at, following.at
        if fold is Fold.FIRST:
            start += max(change.before - change.after, 0)
        if fold is Fold.SECOND:
            stop -= max(following.before - following.after, 0)
        jumped = max(change.after - change.before, 0) if begin <= change.at else 0
        start, stop = max(start, begin), min(stop, end)
        if start < stop:
            found.append(Stretch(start, stop, change.after, jumped))
    return tuple(found)


@lru_cache(maxsize=8192)
def _changes(tz: str, year: int) -> tuple[_Change, ...]:
    """Every change near the year, between two that change nothing at the edges of the search."""
    zone = ZoneInfo(tz)
    probes = range(year_start(year) - MARGIN, year_start(year + 1) + MARGIN + PROBE, PROBE)
    last = _offset(zone, probes[0])
    found = [_Change(probes[0], last, last)]
    for low, high in pairwise(probes):
        offset = _offset(zone, high)
        if offset != last:
            found.append(_Change(_bisect(zone, low, high), last, offset))
            last = offset
    return (*found, _Change(probes[-1], last, last))


def _bisect(zone: ZoneInfo, low: int, high: int) -> int:
    """The first instant after `low` with another offset; there is one until `high`."""
    offset = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = (EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def year_start(year: int) -> int:
    return int((datetime(year, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())


def _year(second: int) -> int:
    return (EPOCH + timedelta(seconds=second)).year
