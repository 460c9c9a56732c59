"""The instants of cadences: through changing clocks, forwards, backwards, and counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.schedule import (
    Cadence,
    Cron,
    Interval,
    Once,
    at,
    check_cadence,
    count_times,
    cron,
    every,
    jittered,
    newest_times,
    next_time,
    next_times,
    previous_time,
    times_between,
)
from perdure.core.schedule.times import END_OF_TIME
from perdure.errors import InvalidInput

BERLIN = "Europe/Berlin"
DAY = timedelta(days=1)
NUUK = "America/Nuuk"  # clocks jump from Saturday 23:00 to Sunday 00:00
APIA = "Pacific/Apia"  # 30 December 2011 never was
SPRING = ("2026-03-29T00:00", "2026-03-29T04:00")  # 02:00 +01:00 becomes 03:00 +02:00
AUTUMN = ("2026-10-25T00:00", "2026-10-25T04:00")  # 03:00 +02:00 becomes 02:00 +01:00


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local_times(cadence: Cron, night: tuple[str, str]) -> list[str]:
    """The clock and its offset at each occurrence of a local night; both ends included."""
    zone = ZoneInfo(cadence.tz)
    start, end = (datetime.fromisoformat(edge).replace(tzinfo=zone) for edge in night)
    just_before = start.astimezone(UTC) - timedelta(seconds=1)
    found = times_between(cadence, just_before, end.astimezone(UTC))
    return [f"{time.astimezone(zone):%d %H:%M %z}"[:-2] for time in found]


@pytest.mark.parametrize(
    ("expression", "options", "expected"),
    [
        ("30 2 * * *", {}, ["29 03:00 +02"]),
        ("30 2 * * *", {"gap": "skip"}, []),
        ("0 3 * * *", {}, ["29 03:00 +02"]),
        ("0,30 2,3 * * *", {}, ["29 03:00 +02", "29 03:30 +02"]),
        ("0,30 2,3 * * *", {"gap": "skip"}, ["29 03:00 +02", "29 03:30 +02"]),
        ("45 1-2 * * *", {}, ["29 01:45 +01", "29 03:00 +02"]),
        ("0 30 2 * * *", {}, ["29 03:00 +02"]),
        ("0 * * * *", {}, ["29 00:00 +01", "29 01:00 +01", "29 03:00 +02", "29 04:00 +02"]),
        ("*/30 2 * * *", {}, []),
        ("* 30 2 * * *", {}, []),
        ("0 */2 * * *", {}, ["29 00:00 +01", "29 04:00 +02"]),
    ],
)
def test_in_spring_a_fixed_time_moves_and_a_wildcard_follows_the_clock(
    expression: str, options: dict[str, Any], expected: list[str]
) -> None:
    assert local_times(cron(expression, tz=BERLIN, **options), SPRING) == expected


@pytest.mark.parametrize(
    ("expression", "options", "expected"),
    [
        ("30 2 * * *", {}, ["25 02:30 +02"]),
        ("30 2 * * *", {"fold": "second"}, ["25 02:30 +01"]),
        ("30 2 * * *", {"fold": "both"}, ["25 02:30 +02", "25 02:30 +01"]),
        ("0,30 2 * * *", {"fold": "both"}, [
            "25 02:00 +02", "25 02:30 +02", "25 02:00 +01", "25 02:30 +01",
        ]),
        ("0 30 2 * * *", {}, ["25 02:30 +02"]),
        ("0 1-3 * * *", {}, ["25 01:00 +02", "25 02:00 +02", "25 03:00 +01"]),
        ("0 1-3 * * *", {"fold": "second"}, ["25 01:00 +02", "25 02:00 +01", "25 03:00 +01"]),
        ("0 * * * *", {}, [
            "25 00:00 +02", "25 01:00 +02", "25 02:00 +02",
            "25 02:00 +01", "25 03:00 +01", "25 04:00 +01",
        ]),
        ("0 * * * *", {"fold": "second"}, [
            "25 00:00 +02", "25 01:00 +02", "25 02:00 +02",
            "25 02:00 +01", "25 03:00 +01", "25 04:00 +01",
        ]),
        ("*/30 2 * * *", {}, [
            "25 02:00 +02", "25 02:30 +02", "25 02:00 +01", "25 02:30 +01",
        ]),
    ],
)  # fmt: skip
def test_in_autumn_a_fixed_time_runs_once_and_a_wildcard_follows_the_clock(
    expression: str, options: dict[str, Any], expected: list[str]
) -> None:
    assert local_times(cron(expression, tz=BERLIN, **options), AUTUMN) == expected


def test_a_quarter_hourly_schedule_keeps_its_pace_through_both_nights() -> None:
    quarterly = cron("*/15 * * * *", tz=BERLIN)
    for night in ("2026-03-28T22:00", "2026-10-24T22:00"):
        found = next_times(quarterly, utc(night), 30)

        assert {b - a for a, b in pairwise(found)} == {timedelta(minutes=15)}


def test_backwards_too_a_time_jumped_over_is_found_after_the_jump() -> None:
    nightly = cron("30 2 * * *", tz=BERLIN)
    jump = utc("2026-03-29T01:00")

    assert previous_time(nightly, jump + timedelta(seconds=1)) == jump
    assert previous_time(nightly, jump) == utc("2026-03-28T01:30")


def test_the_last_hour_of_a_saturday_that_lacks_it_runs_as_sunday_begins() -> None:
    late = cron("30 23 * * *", tz=NUUK)

    found = local_times(late, ("2024-03-29T12:00", "2024-04-01T12:00"))

    assert found == ["29 23:30 -02", "31 00:00 -01", "31 23:30 -01"]


def test_a_time_jumped_over_is_one_occurrence_with_the_regular_one_at_that_instant() -> None:
    both = cron("0 0,23 * * *", tz=NUUK)

    found = local_times(both, ("2024-03-30T12:00", "2024-03-31T12:00"))

    assert found == ["31 00:00 -01"]
    start, end = utc("2024-03-30T12:00"), utc("2024-03-31T12:00")
    assert count_times(both, start, end) == 1


def test_a_day_that_never_was_has_no_occurrence() -> None:
    daily = cron("0 9 * * *", tz=APIA)

    found = local_times(daily, ("2011-12-29T00:00", "2011-12-31T23:00"))

    assert found == ["29 09:00 -10", "31 09:00 +14"]
    assert next_time(cron("0 9 30 12 *", tz=APIA), utc("2011-06-01")) == utc("2012-12-29T19:00")


def test_the_turn_of_a_year_may_be_a_turn_of_the_clocks() -> None:
    """America/Danmarkshavn went from -03 to UTC as 1996 began, by its own clock."""
    daily = cron("30 1 * * *", tz="America/Danmarkshavn")

    found = local_times(daily, ("1995-12-31T00:00", "1996-01-02T12:00"))

    assert found == ["31 01:30 -03", "01 03:00 +00", "02 01:30 +00"]


def test_an_interval_counts_elapsed_time_from_its_anchor() -> None:
    anchored = every(minutes=40, anchor=utc("2026-01-01T00:10"))

    assert next_times(anchored, utc("2026-01-01"), 3) == (
        utc("2026-01-01T00:10"),
        utc("2026-01-01T00:50"),
        utc("2026-01-01T01:30"),
    )
    assert previous_time(anchored, utc("2026-01-01")) == utc("2025-12-31T23:30")


def test_an_interval_without_an_anchor_counts_from_its_start_or_from_the_epoch() -> None:
    assert next_time(every(hours=1), utc("2026-01-01T00:20")) == utc("2026-01-01T01:00")
    started = every(hours=1, start=utc("2026-01-01T00:07"))
    assert next_times(started, utc("2025-01-01"), 2) == (
        utc("2026-01-01T00:07"),
        utc("2026-01-01T01:07"),
    )


def test_an_anchor_in_a_zone_of_changing_clocks_is_an_instant_like_any_other() -> None:
    zone = ZoneInfo(BERLIN)
    daily = Interval(length=timedelta(days=1), anchor=datetime(2026, 3, 1, 9, tzinfo=zone))

    assert next_time(daily, utc("2026-06-01")) == utc("2026-06-01T08:00")


def test_once_is_once() -> None:
    once = at(datetime(2026, 5, 1, 9, tzinfo=timezone(timedelta(hours=2))))

    assert next_times(once, utc("2026-01-01"), 5) == (utc("2026-05-01T07:00"),)
    assert next_time(once, utc("2026-05-01T07:00")) is None
    assert previous_time(once, utc("2026-05-01T07:00")) is None
    assert previous_time(once, utc("2027-01-01")) == utc("2026-05-01T07:00")
    assert count_times(once, utc("2026-01-01"), utc("2026-05-01T07:00")) == 1
    assert count_times(once, utc("2026-05-01T07:00"), utc("2027-01-01")) == 0


@pytest.mark.parametrize("make", [lambda **w: cron("0 * * * *", **w), lambda **w: every(3600, **w)])
def test_a_window_includes_both_its_ends(make: Any) -> None:
    windowed = make(start=utc("2026-01-01T01:00"), end=utc("2026-01-01T03:00"))
    expected = (utc("2026-01-01T01:00"), utc("2026-01-01T02:00"), utc("2026-01-01T03:00"))

    assert next_times(windowed, utc("2020-01-01"), 9) == expected
    assert newest_times(windowed, utc("2020-01-01"), utc("2030-01-01"), 9) == expected
    assert count_times(windowed, utc("2020-01-01"), utc("2030-01-01")) == 3
    assert previous_time(windowed, utc("2026-01-01T01:00")) is None


def test_a_window_without_a_time_in_it_has_none() -> None:
    nightly = cron("0 0 * * *", start=utc("2026-01-01T01:00"), end=utc("2026-01-01T23:00"))

    assert next_time(nightly, utc("2020-01-01")) is None
    assert previous_time(nightly, utc("2030-01-01")) is None
    assert count_times(nightly, utc("2020-01-01"), utc("2030-01-01")) == 0


def test_between_two_instants_the_first_is_left_out_and_the_last_is_not() -> None:
    hourly = cron("0 * * * *")

    found = list(times_between(hourly, utc("2026-01-01T01:00"), utc("2026-01-01T03:00")))

    assert found == [utc("2026-01-01T02:00"), utc("2026-01-01T03:00")]
    assert list(times_between(hourly, utc("2026-01-01T01:10"), utc("2026-01-01T01:50"))) == []


def test_the_newest_are_the_last_so_many_and_never_those_before() -> None:
    hourly = cron("0 * * * *")
    until = utc("2026-01-01T09:30")

    assert newest_times(hourly, utc("2026-01-01T00:30"), until, 2) == (
        utc("2026-01-01T08:00"),
        utc("2026-01-01T09:00"),
    )
    assert newest_times(hourly, utc("2026-01-01T08:00"), until, 5) == (utc("2026-01-01T09:00"),)
    assert newest_times(hourly, until, until, 5) == ()


@pytest.mark.parametrize("cadence", [cron("0 0 29 2 *"), cron("* * * * * *"), every(days=3650)])
def test_the_ends_of_the_calendar_are_ends(cadence: Cadence) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    assert next_time(cadence, last) is None
    assert previous_time(cadence, first) is None
    assert count_times(cadence, last, first) == 0
    assert count_times(cadence, first, last) > 100
    assert newest_times(cadence, first, last, 1)[0] <= END_OF_TIME
    assert next_times(cadence, first, 0) == ()


def test_the_first_second_of_1970_is_the_first_of_all() -> None:
    assert next_time(cron("0 0 * * *"), utc("1969-01-01")) == utc("1970-01-01")
    assert next_time(cron("0 0 1 1 *"), utc("2998-06-01")) == END_OF_TIME
    assert previous_time(cron("0 0 2 1 *"), utc("1970-01-02")) is None


def test_five_million_missed_times_are_counted_and_not_walked_through() -> None:
    each_second = cron("* * * * * *", tz=BERLIN)
    start = utc("2026-01-01")

    assert count_times(each_second, start, start + timedelta(seconds=5_000_000)) == 5_000_000
    assert count_times(cron("*/5 9-17 * * MON-FRI"), start, utc("2036-01-01")) == 2608 * 12 * 9


cadences = st.sampled_from(
    [
        cron("30 2 * * *", tz=BERLIN),
        cron("30 2 * * *", tz=BERLIN, gap="skip", fold="second"),
        cron("*/7 1-3 * * *", tz="Australia/Lord_Howe", fold="both"),
        cron("5,50 1,2 * * *", tz="Australia/Lord_Howe", fold="both"),
        cron("0 0,23 * * *", tz=NUUK),
        cron("15 0 L * ?", tz="America/Sao_Paulo"),
        cron("0 12 * * 1#1,5L", tz=APIA),
        cron("*/20 30 */5 * * *", tz="Asia/Kathmandu"),
        every(minutes=17, anchor=utc("2001-02-03T04:05:06")),
        every(seconds=1.5),
        at(utc("2015-06-07T08:09")),
    ]
)
NAIVE = datetime.fromisoformat("2000-01-01")
instants = st.datetimes(min_value=NAIVE, max_value=NAIVE.replace(year=2037), timezones=st.just(UTC))


@given(cadences, instants, st.integers(0, 40))
def test_forwards_backwards_and_counted_it_is_the_same_times(
    cadence: Cadence, after: datetime, limit: int
) -> None:
    found = next_times(cadence, after, limit)
    until = found[-1] if found else after

    assert list(found) == sorted(set(found))
    assert tuple(times_between(cadence, after, until)) == found
    assert newest_times(cadence, after, until, 99) == found
    assert count_times(cadence, after, until) == len(found)
    for earlier, later in pairwise(found):
        assert previous_time(cadence, later) == earlier


@given(st.sampled_from(["a", "b"]), instants, st.floats(0.001, 86_400.0))
def test_jitter_is_bounded_and_always_the_same(name: str, nominal: datetime, most: float) -> None:
    cadence = every(60, jitter=most)
    due = jittered(cadence, name, nominal)

    assert nominal <= due < nominal + timedelta(seconds=most)
    assert due == jittered(cadence, name, nominal)


def test_jitter_spreads_schedules_and_occurrences_apart() -> None:
    minutely = every(60, jitter=30)
    nominal = utc("2026-01-01")
    spread = {jittered(minutely, f"s{n}", nominal) for n in range(100)}

    assert len(spread) == 100
    assert max(spread) - min(spread) > timedelta(seconds=25)
    times = next_times(minutely, nominal, 50)
    assert len({jittered(minutely, "s", time) - time for time in times}) == 50
    assert jittered(every(60), "s", nominal) == nominal


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("cron", lambda: cron(5)),  # type: ignore[arg-type]  # what callers may do
        ("tz", lambda: cron("@daily", tz="Europe/Atlantis")),
        ("tz", lambda: cron("@daily", tz="Europe")),
        ("tz", lambda: cron("@daily", tz="../etc/passwd")),
        ("tz", lambda: cron("@daily", tz="")),
        ("tz", lambda: cron("@daily", tz="localtime")),
        ("tz", lambda: cron("@daily", tz="right/Europe/Berlin")),
        ("tz", lambda: cron("@daily", tz=None)),  # type: ignore[arg-type]  # what callers may do
        ("tz", lambda: cron("@daily", tz=timezone(timedelta(hours=1)))),
        ("every", lambda: every(True)),
        ("gap", lambda: cron("@daily", gap="never")),
        ("fold", lambda: cron("@daily", fold="third")),
        ("start", lambda: cron("@daily", start=NAIVE)),
        ("start", lambda: cron("@daily", start="2026")),  # type: ignore[arg-type]  # the same
        ("end", lambda: cron("@daily", start=utc("2026-01-02"), end=utc("2026-01-01"))),
        ("end", lambda: every(60, start=utc("2026-01-02"), end=utc("2026-01-01"))),
        ("jitter", lambda: cron("@daily", jitter=-1)),
        ("jitter", lambda: every(60, jitter=timedelta(days=2))),
        ("jitter", lambda: cron("@daily", jitter="x")),  # type: ignore[arg-type]  # the same
        ("jitter", lambda: cron("@daily", jitter=float("nan"))),
        ("every", lambda: every()),
        ("every", lambda: every(0.5)),
        ("every", lambda: every(days=4000)),
        ("every", lambda: every(60, minutes=1)),
        ("every", lambda: every(days=1e300)),
        ("every", lambda: every("5m")),  # type: ignore[arg-type]  # the same
        ("anchor", lambda: every(60, anchor=NAIVE)),
        ("at", lambda: at(NAIVE)),
        ("at", lambda: at("tomorrow")),  # type: ignore[arg-type]  # the same
        ("cron", lambda: check_cadence(Cron(expression="61 * * * *"))),
        ("at", lambda: check_cadence(Once(instant=NAIVE))),
        ("anchor", lambda: check_cadence(Interval(length=DAY, anchor=NAIVE))),
    ],
)  # fmt: skip
def test_a_cadence_that_makes_no_sense_is_refused_by_its_field(field: str, make: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()

    assert caught.value.field == field


def test_a_zone_may_be_given_as_what_datetimes_have() -> None:
    assert cron("@daily", tz=UTC) == cron("@daily")
    assert cron("@daily", tz=ZoneInfo("Asia/Tokyo")) == cron("@daily", tz="Asia/Tokyo")
