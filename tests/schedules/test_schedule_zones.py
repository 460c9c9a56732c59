"""Every zone, every change of its clocks from 1970 to 2037: daily, hourly, every few minutes.

The changes come from the zone files by way of `zoneinfo`'s Python half, so that the probing of
the code under test is checked against them, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, _zoneinfo, available_timezones  # type: ignore[attr-defined]

import pytest

from perdure.core.schedule import count_times, cron, times_between
from perdure.core.schedule.clock_changes import EPOCH, PROBE, Fold, stretches

FIRST, LAST = 1970, 2037
DAY = 86_400
SECOND = timedelta(seconds=1)
MIDNIGHT, NOON = time(0), time(12)


class Turn(NamedTuple):
    """The clocks of a zone are turned, from one offset to another."""

    at: int
    before: int
    after: int


def instant(second: int) -> datetime:
    return EPOCH + timedelta(seconds=second)


def second(instant: datetime) -> int:
    return int((instant - EPOCH).total_seconds())


BEGIN, END = second(datetime(FIRST, 1, 1, tzinfo=UTC)), second(datetime(LAST + 1, 1, 1, tzinfo=UTC))


@cache
def turns_of(name: str) -> tuple[Turn, ...]:
    zone: Any = _zoneinfo.ZoneInfo(name)
    return tuple(turn for turn in _all_turns(zone) if BEGIN <= turn.at < END)


def _all_turns(zone: Any) -> Iterator[Turn]:
    listed = [(at, info.utcoff) for at, info in zip(zone._trans_utc, zone._ttinfos, strict=True)]
    after_list = max((at for at, _ in listed), default=BEGIN)
    if hasattr(zone._tz_after, "transitions"):
        for year in range(FIRST, LAST + 1):
            rule = zone._tz_after
            start, end = rule.transitions(year)
            ruled = [(start - rule.std.utcoff // SECOND, rule.dst.utcoff)]
            ruled += [(end - rule.dst.utcoff // SECOND, rule.std.utcoff)]
            listed += sorted(turn for turn in ruled if turn[0] > after_list)
    last = zone._tti_before.utcoff if zone._tti_before else None
    for at, offset in listed:
        if last is not None and offset != last:
            yield Turn(at, last // SECOND, offset // SECOND)
        last = offset


@cache
def zones() -> tuple[str, ...]:
    """One name for each zone: links to one another are one zone."""
    distinct = {turns_of(name): name for name in sorted(available_timezones(), reverse=True)}
    return tuple(sorted(distinct.values()))


@cache
def turns() -> dict[Turn, str]:
    """Every turn of any zone, and a zone that has it. What happens around it depends on nothing
    else: no zone has another one within days, and probing is tested for each zone."""
    return {turn: name for name in zones() for turn in turns_of(name)}


def existing_days(name: str, start: int, end: int) -> set[date]:
    """The local days of which some instant lies in `[start, end)`; each quarter hour is asked."""
    zone = ZoneInfo(name)
    return {instant(at).astimezone(zone).date() for at in range(start, end, 900)}


def test_probing_finds_every_turn_of_every_zone() -> None:
    for name in zones():
        found = [
            (stretch.start, stretch.offset)
            for year in range(FIRST, LAST + 1)
            for stretch in stretches(name, year, Fold.BOTH)
        ]
        # Each year begins with a stretch that may go on from the year before.
        changed = [now for last, now in pairwise(found) if last[1] != now[1]]

        assert changed == [(turn.at, turn.after) for turn in turns_of(name)], name


def test_no_zone_keeps_a_clock_for_less_than_twice_the_probe() -> None:
    lengths = [
        later.at - earlier.at for name in zones() for earlier, later in pairwise(turns_of(name))
    ]

    assert len(lengths) > 10_000
    assert min(lengths) > 2 * PROBE


def clocks_near(turn: Turn) -> set[int]:
    """Seconds of the day just outside, at the edges of, and inside what is lost or repeated."""
    walls = sorted((turn.at + turn.before, turn.at + turn.after))
    inside = (walls[0] + walls[1]) // 2 // 60 * 60
    return {wall % DAY for wall in (walls[0] - 60, walls[0], inside, walls[1], walls[1] + 60)}


def expected_daily(name: str, turn: Turn, clock: int, days: set[date]) -> list[int]:
    """One for each local day that exists, by asking `zoneinfo` about each."""
    zone = ZoneInfo(name)
    found = []
    for day in sorted(days):
        wall = datetime.combine(day, MIDNIGHT) + timedelta(seconds=clock)
        first = wall.replace(tzinfo=zone).astimezone(UTC)
        exists = first.astimezone(zone).replace(tzinfo=None) == wall
        found.append(second(first) if exists else turn.at)
    return found


def test_a_daily_schedule_fires_once_on_each_local_day_around_every_turn() -> None:
    for turn, name in turns().items():
        days = existing_days(name, turn.at - DAY, turn.at + DAY)
        since, until = instant(turn.at - 3 * DAY), instant(turn.at + 3 * DAY)
        for clock in clocks_near(turn):
            expression = f"{clock % 60} {clock // 60 % 60} {clock // 3600} * * *"
            daily = cron(expression, tz=name)
            wanted = expected_daily(name, turn, clock, days)

            found = map(second, times_between(daily, since, until))
            fired = [at for at in found if wanted[0] <= at <= wanted[-1]]

            assert fired == wanted, (name, instant(turn.at), expression)


@pytest.mark.parametrize(("expression", "step"), [("0 * * * *", 3600), ("*/15 * * * *", 900)])
def test_a_wildcard_fires_whenever_the_clock_matches_around_every_turn(
    expression: str, step: int
) -> None:
    for turn, name in turns().items():
        start, end = turn.at - 7200, turn.at + 7200
        made = cron(expression, tz=name)
        # Of each side of the turn, the instants at which its own clock shows a round time.
        wanted = [*range(start + -(start + turn.before) % step, turn.at, step)]
        wanted += range(turn.at + -(turn.at + turn.after) % step, end, step)

        found = times_between(made, instant(start - 1), instant(end - 1))

        assert list(map(second, found)) == wanted, (name, instant(turn.at))


def test_in_all_those_years_there_is_one_daily_occurrence_for_each_local_day() -> None:
    first, last = date(FIRST, 1, 2), date(LAST, 12, 30)
    for name in zones():
        never = sum(turn.after - turn.before == DAY for turn in turns_of(name))
        # From noon to noon: each night has one, but those that were jumped over as a whole.
        noons = (datetime.combine(day, NOON, ZoneInfo(name)) for day in (first, last))
        since, until = (noon.astimezone(UTC) for noon in noons)
        for clock in ("0 0", "30 2", "59 23"):
            count = count_times(cron(f"{clock} * * *", tz=name), since, until)

            assert count == (last - first).days - never, (name, clock)
