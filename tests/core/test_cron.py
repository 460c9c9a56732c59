"""Cron expressions: what they mean, what is refused, and that refusals point at the field."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.core.schedule import cron, next_times, previous_time
from perdure.core.schedule.cron import MAX_LENGTH, days_of_month, parse_cron
from perdure.errors import InvalidInput

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def times(expression: str, count: int, after: datetime = NOW) -> list[str]:
    found = next_times(cron(expression), after, count)
    return [time.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00") for time in found]


def days(expression: str, year: int, month: int) -> list[int]:
    return days_of_month(parse_cron(f"0 0 {expression}"), year, month)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 9 * * *", ["2026-01-01 09:30", "2026-01-02 09:30"]),
        ("*/20 * * * *", ["2026-01-01 00:20", "2026-01-01 00:40"]),
        ("5/20 3 * * *", ["2026-01-01 03:05", "2026-01-01 03:25", "2026-01-01 03:45"]),
        ("10-30/10 3 * * *", ["2026-01-01 03:10", "2026-01-01 03:20", "2026-01-01 03:30"]),
        ("1,3,2 4 * * *", ["2026-01-01 04:01", "2026-01-01 04:02", "2026-01-01 04:03"]),
        ("0 0 1 jan,Jul *", ["2026-07-01 00:00", "2027-01-01 00:00"]),
        ("0 9 * * MON-FRI", ["2026-01-01 09:00", "2026-01-02 09:00", "2026-01-05 09:00"]),
        ("0 9 * * fri-sun", ["2026-01-02 09:00", "2026-01-03 09:00", "2026-01-04 09:00"]),
        ("0 9 * * 7", ["2026-01-04 09:00", "2026-01-11 09:00"]),
        ("0 9 * * 0", ["2026-01-04 09:00", "2026-01-11 09:00"]),
        ("*/30 * * * * *", ["2026-01-01 00:00:30", "2026-01-01 00:01"]),
        ("15 30 9 * * *", ["2026-01-01 09:30:15", "2026-01-02 09:30:15"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("  0\t9  * * *  ", ["2026-01-01 09:00"]),
    ],
)
def test_an_expression_names_its_times(expression: str, expected: list[str]) -> None:
    assert times(expression, len(expected)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00"]),
        ("@daily", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("@midnight", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("@weekly", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00", "2028-01-01 00:00"]),
        ("@Annually", ["2027-01-01 00:00", "2028-01-01 00:00"]),
    ],
)
def test_an_at_name_stands_for_an_expression(name: str, expected: list[str]) -> None:
    assert times(name, 2) == expected


@pytest.mark.parametrize(
    ("day_fields", "month", "expected"),
    [
        ("L * *", 2, [28]),
        ("L,1 * *", 4, [1, 30]),
        ("LW * *", 5, [29]),  # 31 May 2026 is a Sunday
        ("LW * *", 1, [30]),  # 31 January 2026 is a Saturday
        ("LW * *", 4, [30]),
        ("15W * ?", 1, [15]),
        ("15W * ?", 2, [16]),  # a Sunday, so the Monday after
        ("14W * ?", 2, [13]),  # a Saturday, so the Friday before
        ("1W * *", 8, [3]),  # a Saturday, and Friday is another month
        ("31W * *", 5, [29]),  # a Sunday, and Monday is another month
        ("31W * *", 4, []),
        ("* * 5L", 1, [30]),
        ("* * FRIL", 2, [27]),
        ("* * 7L", 3, [29]),
        ("* * MON#2", 1, [12]),
        ("* * 0#5", 3, [29]),
        ("* * 0#5", 4, []),
        ("? * 1#1,5L", 1, [5, 30]),
        ("13 * 5", 2, [6, 13, 20, 27]),  # either field suffices
        ("13 * FRI#1", 1, [2, 13]),
        ("*/10 * 5", 1, []),  # a star in either field: both must match
        ("1-7 * */7", 2, [1]),
        ("? * 5", 1, [2, 9, 16, 23, 30]),
        ("1 * ?", 1, [1]),
    ],
)
def test_days_are_found_by_date_and_by_weekday(
    day_fields: str, month: int, expected: list[int]
) -> None:
    assert days(day_fields, 2026, month) == expected


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("0 25 * * *", "field 2 (hour): 25 is not between 0 and 23"),
        ("0 0 L-3 * *", "field 3 (day of month): L-3: days before the last are not known here"),
        ("@every 5m", "is no time on a clock; use every(…), e.g. every(minutes=5)"),
        ("0 0 1 1 * 2030", "field 6 (day of week): 2030 looks like a year; with six fields the"),
        ("0 0 0 1 1 * 2030", "has 7 fields; it needs 5 (minute, hour, day of month, month, day"),
        ("0 0 25 * * *", "field 3 (hour): 25 is not between 0 and 23"),
        ("60 0 0 * * *", "field 1 (second): 60 is not between 0 and 59"),
        ("60 0 * * *", "field 1 (minute): 60 is not between 0 and 59"),
        ("0 0 0 * *", "field 3 (day of month): 0 is not between 1 and 31"),
        ("0 0 * 13 *", "field 4 (month): 13 is not between 1 and 12"),
        ("0 0 * * 8", "field 5 (day of week): 8 is not between 0 and 7"),
        ("0 0 * * FRY", "field 5 (day of week): 'FRY' is not a number or one of SUN MON"),
        ("0 0 * MON *", "field 4 (month): 'MON' is not a number or one of JAN FEB"),
        ("0 x * * *", "field 2 (hour): 'X' is not a number"),
        ("0 ٣ * * *", "field 2 (hour): '٣' is not a number"),
        ("0 -1 * * *", "field 2 (hour): a number is missing in -1"),
        ("0 1- * * *", "field 2 (hour): a number is missing in 1-"),
        ("0 0 * * 1,#2", "field 5 (day of week): a number is missing in #2"),
        ("TZ=UTC 0 9 * * *", "names a zone; say it apart, e.g. tz='Europe/Berlin'"),
        ("CRON_TZ=Asia/Tokyo 0 9 * * *", "names a zone; say it apart"),
        ("0 22-2 * * *", "field 2 (hour): 22-2 runs backwards; write 22-23,0-2"),
        ("1,,2 * * * *", "field 1 (minute): there is nothing beside a comma"),
        ("*/0 * * * *", "field 1 (minute): a step of 0 is not between 1 and 60"),
        ("*/90 * * * *", "field 1 (minute): a step of 90 is not between 1 and 60"),
        ("*/x * * * *", "field 1 (minute): 'X' after / is not a number"),
        ("0 0 * * */8", "field 5 (day of week): a step of 8 is not between 1 and 7"),
        ("? * * * *", "field 1 (minute): '?' is not a number"),
        ("0 0 * * L", "field 5 (day of week): L needs a day before it"),
        ("0 0 * * 1#6", "field 5 (day of week): '6' after # is not between 1 and 5"),
        ("0 0 32W * *", "field 3 (day of month): 32 is not between 1 and 31"),
        ("0 0 W * *", "field 3 (day of month): a number is missing in W"),
        ("0 L * * *", "field 2 (hour): 'L' is not a number"),
        ("0 0 30 2 *", "field 3 (day of month): no month of field 4 ever has such a day"),
        ("0 0 0 31 4,6,9,11 *", "field 4 (day of month): no month of field 5 ever has"),
        ("0 0 31W 2 *", "field 3 (day of month): no month of field 4 ever has such a day"),
        ("* * *", "has 3 fields; it needs 5"),
        ("* * * * * * *", "has 7 fields; it needs 5"),
        ("", "has 0 fields; it needs 5"),
        ("@reboot", "is not one of @hourly, @daily"),
        ("@", "is not one of @hourly, @daily"),
    ],
)
def test_a_refusal_says_which_field_and_why(expression: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        cron(expression)

    assert caught.value.field == "cron"
    assert caught.value.problem.startswith(f"{expression!r}: {problem}")


def test_an_endless_expression_is_not_even_read() -> None:
    with pytest.raises(InvalidInput, match="must not be longer than"):
        cron("1," * MAX_LENGTH + "1 * * * *")


def test_a_day_that_one_field_lacks_may_come_by_the_other() -> None:
    assert times("0 0 30 2 MON", 2) == ["2026-02-02 00:00", "2026-02-09 00:00"]


def test_the_rarest_day_is_found_without_a_long_walk() -> None:
    """29 February on a Sunday: every 28 years, and 40 across 2100."""
    found = next_times(cron("0 0 29 2 */7"), NOW, 4)

    assert [time.year for time in found] == [2032, 2060, 2088, 2128]
    assert previous_time(cron("0 0 29 2 */7"), NOW) == datetime(2004, 2, 29, tzinfo=UTC)


def test_the_same_expression_is_read_once() -> None:
    assert parse_cron("7 7 * * *") is parse_cron("7 7 * * *")


numbers = [str(number) for number in (0, 1, 5, 7, 12, 23, 31, 59, 60, 10**11)]
signs = ["*", "?", "/", "-", ",", "#", "@", "x", "é", "٣", "\x00"]
tokens = st.sampled_from([*numbers, *signs, "L", "W", "LW", "MON", "SUN", "JAN"])
scrawls = st.one_of(st.text(max_size=40), st.lists(tokens, max_size=30).map("".join))
fields = st.lists(tokens, min_size=1, max_size=4).map("".join)
shaped = st.lists(fields, min_size=5, max_size=6).map(" ".join)


@given(st.one_of(scrawls, shaped))
@example("0 0 29 2 */7")
@example("0 0 31 */2,1 1#5")
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    made = None
    with suppress(InvalidInput):  # and nothing else
        made = cron(text)
    if made is not None:
        first, second = next_times(made, NOW, 2)
        assert NOW < first < second < NOW + timedelta(days=366 * 85)


def test_zeros_before_a_number_change_nothing_however_many() -> None:
    assert times(f"{5:020} */{10:020} * * *", 5) == times("5 */10 * * *", 5)
