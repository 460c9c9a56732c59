"""Our cron beside two independent libraries: equal wherever the rules agree, and the rules on
which they do not agree are listed here, each with an example that really differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perdure.core.schedule import cron, newest_times, next_times
from perdure.core.schedule.clock_changes import EPOCH
from perdure.errors import InvalidInput

Library = Callable[[str, datetime], Iterator[datetime]]


def in_cronsim(expression: str, after: datetime) -> Iterator[datetime]:
    return iter(CronSim(expression, after))


def in_croniter(expression: str, after: datetime) -> Iterator[datetime]:
    return iter(croniter(expression, after, ret_type=datetime))


def theirs(library: Library, expression: str, after: datetime, count: int) -> list[datetime]:
    return [found.astimezone(UTC) for found in islice(library(expression, after), count)]


def ours(expression: str, after: datetime, count: int) -> list[datetime]:
    """None if no day can match, which we refuse; a library gives up its search instead."""
    zone = str(after.tzinfo)
    try:
        made = cron(expression, tz=zone)
    except InvalidInput as error:
        if not error.problem.endswith("ever has such a day"):
            raise
        return []
    return list(next_times(made, after.astimezone(UTC), count))


def number(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high).map(str)


def spread(low: int, high: int) -> st.SearchStrategy[str]:
    """`a-b`, with or without a step; never `a-a`, on which croniter has its own opinion."""
    pairs = st.tuples(st.integers(low, high), st.integers(low, high))
    wide = pairs.map(sorted).filter(lambda pair: pair[0] < pair[1])
    steps = st.sampled_from(["", "/2", "/3"])
    return st.tuples(wide, steps).map(lambda it: f"{it[0][0]}-{it[0][1]}{it[1]}")


def field(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.one_of(number(low, high), spread(low, high))
    lists = st.lists(one, min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), lists)


def stepped(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(field(low, high), st.sampled_from(["*/2", "*/5", "*/7"]))


clock_fields = st.tuples(stepped(0, 59), stepped(0, 23)).map(" ".join)
# A star and nothing else in one of the day fields: `*/n` there is Debian's AND, croniter's OR.
plain_days = st.one_of(
    st.tuples(field(1, 28), field(1, 12), st.just("*")),
    st.tuples(st.just("*"), field(1, 12), field(0, 6)),
    st.tuples(number(1, 28), field(1, 12), number(0, 6)),
).map(" ".join)
debian_days = st.tuples(
    st.one_of(stepped(1, 28), st.sampled_from(["L", "LW"])),
    stepped(1, 12),
    st.one_of(stepped(0, 6), st.sampled_from(["5L", "1#2", "0#1,3#3"])),
).map(" ".join)
moments = st.datetimes(
    min_value=datetime.fromisoformat("2000-01-01"),
    max_value=datetime.fromisoformat("2036-01-01"),
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=0))


@settings(max_examples=300)
@given(clock_fields, debian_days, moments)
def test_in_utc_we_agree_with_cronsim_on_every_debian_rule(
    clock: str, days: str, after: datetime
) -> None:
    expression = f"{clock} {days}"

    assert ours(expression, after, 5) == theirs(in_cronsim, expression, after, 5)


@settings(max_examples=150)
@given(st.one_of(st.just("*/10"), field(0, 59)), clock_fields, debian_days, moments)
def test_in_utc_we_agree_with_cronsim_on_six_fields_seconds_first(
    second: str, clock: str, days: str, after: datetime
) -> None:
    expression = f"{second} {clock} {days}"

    assert ours(expression, after, 5) == theirs(in_cronsim, expression, after, 5)


@settings(max_examples=150)
@given(clock_fields, debian_days, moments)
def test_backwards_we_agree_with_cronsim(clock: str, days: str, before: datetime) -> None:
    expression = f"{clock} {days}"
    first, last = before - timedelta(days=366 * 60), before - timedelta(seconds=1)
    wanted = list(islice(CronSim(expression, before, reverse=True), 4))
    assume(wanted and wanted[-1] > max(first, EPOCH))

    found = newest_times(cron(expression), first, last, 4)

    assert list(reversed(found)) == wanted


@settings(max_examples=200)
@given(clock_fields, plain_days, moments)
def test_in_utc_we_agree_with_croniter_where_it_has_debians_rule(
    clock: str, days: str, after: datetime
) -> None:
    expression = f"{clock} {days}"

    assert ours(expression, after, 5) == theirs(in_croniter, expression, after, 5)


NIGHTS = [
    ("Europe/Berlin", "2026-03-28T12:00"),
    ("Europe/Berlin", "2026-10-24T12:00"),
    ("America/New_York", "2026-03-07T12:00"),
    ("America/New_York", "2026-10-31T12:00"),
    ("America/Sao_Paulo", "2018-11-03T12:00"),
    ("Asia/Beirut", "2026-03-28T12:00"),
    ("Pacific/Auckland", "2026-04-04T12:00"),
]


@settings(max_examples=150)
@given(
    st.sampled_from(NIGHTS),
    st.one_of(
        st.tuples(number(0, 59), number(0, 4)),  # a fixed time, in the night or just after
        st.tuples(st.sampled_from(["*/15", "*/20", "*"]), st.sampled_from(["*", "*/2", "1,2,3"])),
        st.tuples(number(0, 59), st.just("*")),
    ).map(" ".join),
)
def test_through_changing_clocks_we_agree_with_cronsim(night: tuple[str, str], clock: str) -> None:
    zone, evening = night
    after = datetime.fromisoformat(evening).replace(tzinfo=ZoneInfo(zone))
    expression = f"{clock} * * *"

    assert ours(expression, after, 12) == theirs(in_cronsim, expression, after, 12)


@pytest.mark.parametrize("night", NIGHTS)
@pytest.mark.parametrize("expression", ["0 * * * *", "*/15 * * * *", "30 5 * * *"])
def test_through_changing_clocks_we_agree_with_croniter_on_elapsed_time(
    night: tuple[str, str], expression: str
) -> None:
    zone, evening = night
    after = datetime.fromisoformat(evening).replace(tzinfo=ZoneInfo(zone))

    assert ours(expression, after, 60) == theirs(in_croniter, expression, after, 60)


BERLIN_SPRING = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Berlin"))
BERLIN_AUTUMN = datetime(2026, 10, 24, 12, tzinfo=ZoneInfo("Europe/Berlin"))
APIA = datetime(2011, 12, 28, 12, tzinfo=ZoneInfo("Pacific/Apia"))
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)

DIFFERENCES = {
    "croniter fires a fixed time of the repeated hour twice": (
        in_croniter, "30 2 * * *", BERLIN_AUTUMN,
    ),
    "croniter needs either day field where Debian's star needs both": (
        in_croniter, "0 0 */2 * 1", NEW_YEAR,
    ),
    "croniter takes the sixth field for seconds": (in_croniter, "30 9 1 1 * *", NEW_YEAR),
    "croniter takes a range of one for a star": (in_croniter, "0 0 1 5-5 *", NEW_YEAR),
    "cronsim gives six fields no fixed times, so they fire twice": (
        in_cronsim, "0 30 2 * * *", BERLIN_AUTUMN,
    ),
    "cronsim drops six fields in the gap": (in_cronsim, "0 30 2 * * *", BERLIN_SPRING),
    "cronsim runs a day that never was as the next one begins": (
        in_cronsim, "0 9 * * *", APIA,
    ),
}  # fmt: skip


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_each_declared_difference_is_one(difference: str) -> None:
    library, expression, after = DIFFERENCES[difference]

    assert ours(expression, after, 3) != theirs(library, expression, after, 3)


@pytest.mark.parametrize("expression", ["0 0 15W * *", "@daily", "0 0 ? * 1", "0 0 * * FRI-SUN"])
def test_we_read_what_cronsim_refuses(expression: str) -> None:
    with pytest.raises(CronSimError):
        CronSim(expression, NEW_YEAR)

    assert len(ours(expression, NEW_YEAR, 3)) == 3


@pytest.mark.parametrize("expression", ["*/90 * * * *", "0 0 * 1-2/30 *"])
def test_we_refuse_steps_that_never_step(expression: str) -> None:
    assert theirs(in_cronsim, expression, NEW_YEAR, 1)
    with pytest.raises(InvalidInput):
        cron(expression)
