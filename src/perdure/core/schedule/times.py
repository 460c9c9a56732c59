"""The instants of a cadence: the next, the previous, those between two, and how many.

The rule for clocks that change, in one place:

- A cron expression whose second, minute or hour field begins with `*` follows elapsed time: it
  fires at every instant at which the clock on the wall matches. A time that is jumped over does
  not happen; one that happens twice fires twice.
- Any other expression names fixed times. One that is jumped over fires at the first instant
  after the jump (`gap="skip"`: not at all), and is one occurrence with whatever else fires then.
  One that happens twice fires at the first (`fold`: at the second, or at both).
- A local day that is jumped over as a whole never was, and has no occurrence.
- Intervals and single instants know no clocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import assert_never

from perdure.core.schedule.cadence import Cadence, Cron, Gap, Interval, Once
from perdure.core.schedule.clock_changes import (
    EPOCH,
    LAST_YEAR,
    Fold,
    Stretch,
    stretches_backwards,
    stretches_between,
)
from perdure.core.schedule.cron import CronFields, parse_cron
from perdure.core.schedule.cron_matches import DAY, count_matches, first_match, last_match

TICK = timedelta(microseconds=1)
"""The smallest step between two instants."""

END_OF_TIME = datetime(LAST_YEAR, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def next_times(cadence: Cadence, after: datetime, limit: int) -> tuple[datetime, ...]:
    """The first `limit` times after `after`; fewer if there are no more."""
    return tuple(islice(times_between(cadence, after, END_OF_TIME), max(limit, 0)))


def times_between(cadence: Cadence, after: datetime, until: datetime) -> Iterator[datetime]:
    """The times after `after`, up to and including `until`, in order."""
    found = next_time(cadence, after)
    while found is not None and found <= until:
        yield found
        found = next_time(cadence, found)


def next_time(cadence: Cadence, after: datetime) -> datetime | None:
    """The first time after `after`."""
    after, until = _within(cadence, after, END_OF_TIME)
    if after >= until:
        return None
    match cadence:
        case Cron():
            found = _next_cron(cadence, after, until)
        case Interval():
            found = cadence.phase + ((after - cadence.phase) // cadence.length + 1) * cadence.length
        case Once():
            found = cadence.instant.astimezone(UTC)
        case _:
            assert_never(cadence)
    return found if found is not None and found <= until else None


def previous_time(cadence: Cadence, before: datetime) -> datetime | None:
    """The last time before `before`."""
    after, until = _within(cadence, EPOCH - TICK, max(before, EPOCH) - TICK)
    if after >= until:
        return None
    match cadence:
        case Cron():
            found = _previous_cron(cadence, after, until)
        case Interval():
            found = cadence.phase + ((until - cadence.phase) // cadence.length) * cadence.length
        case Once():
            found = cadence.instant.astimezone(UTC)
        case _:
            assert_never(cadence)
    return found if found is not None and found > after else None


def newest_times(
    cadence: Cadence, after: datetime, until: datetime, limit: int
) -> tuple[datetime, ...]:
    """The last `limit` times of those after `after`, up to and including `until`, in order."""
    newest: list[datetime] = []
    found = previous_time(cadence, min(until, END_OF_TIME) + TICK)
    while found is not None and found > after and len(newest) < limit:
        newest.append(found)
        found = previous_time(cadence, found)
    return tuple(reversed(newest))


def count_times(cadence: Cadence, after: datetime, until: datetime) -> int:
    """How many times there are after `after`, up to and including `until`.

    Costs the same for a million as for one of the same years: nothing is enumerated.
    """
    after, until = _within(cadence, after, until)
    if after >= until:
        return 0
    match cadence:
        case Cron():
            return _count_cron(cadence, after, until)
        case Interval():
            phase, length = cadence.phase, cadence.length
            return (until - phase) // length - (after - phase) // length
        case Once():
            return 1
        case _:
            assert_never(cadence)


def jittered(cadence: Cadence, schedule_id: str, nominal: datetime) -> datetime:
    """When the occurrence of `nominal` is due: up to the jitter later, always equally much."""
    if not cadence.jitter:
        return nominal
    digest = hashlib.sha256(f"{schedule_id}:{nominal.isoformat()}".encode()).digest()
    share = int.from_bytes(digest[:8], "big")
    return nominal + cadence.jitter // TICK * share // 2**64 * TICK


def _within(cadence: Cadence, after: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The part of `(after, until]` in which the cadence has times at all."""
    match cadence:
        case Once():
            start: datetime | None = cadence.instant
            end: datetime | None = cadence.instant
        case Cron() | Interval():
            start, end = cadence.start, cadence.end
        case _:
            assert_never(cadence)
    begin = max(start or EPOCH, EPOCH).astimezone(UTC) - TICK
    close = min(end or END_OF_TIME, END_OF_TIME).astimezone(UTC)
    # In UTC, because sums in a zone with changing clocks are sums on the wall.
    return max(after.astimezone(UTC), begin), min(until.astimezone(UTC), close)


def _next_cron(cron: Cron, after: datetime, until: datetime) -> datetime | None:
    fields = parse_cron(cron.expression)
    start, stop = seconds_of(after) + 1, seconds_of(until) + 1
    for stretch in stretches_between(cron.tz, start, stop, _fold(cron, fields)):
        if stretch.start >= start and _fires_after_gap(cron, fields, stretch):
            return _instant(stretch.start)
        found = first_match(fields, *_wall(stretch, start, stop))
        if found is not None:
            return _instant(found - stretch.offset)
    return None


def _previous_cron(cron: Cron, after: datetime, until: datetime) -> datetime | None:
    fields = parse_cron(cron.expression)
    start, stop = seconds_of(after) + 1, seconds_of(until) + 1
    for stretch in stretches_backwards(cron.tz, start, stop, _fold(cron, fields)):
        found = last_match(fields, *_wall(stretch, start, stop))
        if found is not None:
            return _instant(found - stretch.offset)
        if stretch.start >= start and _fires_after_gap(cron, fields, stretch):
            return _instant(stretch.start)
    return None


def _count_cron(cron: Cron, after: datetime, until: datetime) -> int:
    fields = parse_cron(cron.expression)
    start, stop = seconds_of(after) + 1, seconds_of(until) + 1
    total = 0
    for stretch in stretches_between(cron.tz, start, stop, _fold(cron, fields)):
        first, last = _wall(stretch, start, stop)
        total += count_matches(fields, first, last)
        if stretch.start >= start and _fires_after_gap(cron, fields, stretch):
            regular = first_match(fields, first, first + 1)
            total += 1 if regular is None else 0
    return total


def _wall(stretch: Stretch, start: int, stop: int) -> tuple[int, int]:
    """What the clock says in the part of the stretch between the two instants."""
    first, last = max(stretch.start, start), min(stretch.end, stop)
    return first + stretch.offset, last + stretch.offset


def _fold(cron: Cron, fields: CronFields) -> Fold:
    return Fold.BOTH if fields.follows_elapsed_time else cron.fold


def jumped_time(cron: Cron, fields: CronFields, stretch: Stretch) -> int | None:
    """The first fixed time that was jumped over at the stretch's start, and so fires there; not
    one of a day that was jumped over as a whole."""
    if not stretch.jumped or cron.gap is Gap.SKIP or fields.follows_elapsed_time:
        return None
    stop = stretch.start + stretch.offset
    start = stop - stretch.jumped
    midnight_after, midnight_before = -(-start // DAY) * DAY, stop // DAY * DAY
    if midnight_after >= midnight_before:
        return first_match(fields, start, stop)
    on_the_first = first_match(fields, start, midnight_after)
    on_the_last = first_match(fields, midnight_before, stop)
    return on_the_last if on_the_first is None else on_the_first


def _fires_after_gap(cron: Cron, fields: CronFields, stretch: Stretch) -> bool:
    return jumped_time(cron, fields, stretch) is not None


def seconds_of(instant: datetime) -> int:
    return (instant - EPOCH) // _SECOND


def _instant(second: int) -> datetime:
    return EPOCH + second * _SECOND
