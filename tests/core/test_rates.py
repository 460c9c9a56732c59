"""How many in a time: what a rate says, and what its bucket allows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from builders import T0, after
from perdure.core.limits.rates import Pace, Rate, full_at, make_rate, settle, take, tokens
from perdure.errors import InvalidInput

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/1m", Rate(100, per=60)),
        ("5/s", Rate(5, per=1)),
        ("10/30s", Rate(10, per=timedelta(seconds=30))),
        (" 3 / 1.5 h ", Rate(3, per=5400)),
        ("1/d", Rate(1, per=86400)),
        ("2/500ms", Rate(2, per=0.5)),
    ],
)
def test_a_rate_is_read_from_what_people_write(text: str, rate: Rate) -> None:
    assert make_rate(text) == rate
    assert make_rate(rate) is rate
    assert rate.burst == rate.starts


def test_no_rate_is_no_rate() -> None:
    assert make_rate(None) is None


def test_a_rate_with_thousands_of_digits_is_refused() -> None:
    for wrong in (f"{'9' * 5000}/s", f"1/{'9' * 5000}s"):
        with pytest.raises(InvalidInput) as caught:
            make_rate(wrong)

        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("starts", [2**31, 2**64, 10**400])
def test_more_starts_than_a_duration_can_count_are_refused(starts: int) -> None:
    with pytest.raises(InvalidInput, match="10,000 a second"):
        Rate(starts)


@pytest.mark.parametrize(
    ("starts", "per", "burst"),
    [(1, 366 * 86400, 11), (1, 366 * 86400, 2**31 - 1), (10, 600, 2**31 - 1), (1, 1, 2**70)],
)
def test_a_burst_that_would_need_more_than_ten_years_is_refused(
    starts: int, per: float, burst: int
) -> None:
    with pytest.raises(InvalidInput, match="10 years") as caught:
        Rate(starts, per, burst)

    assert caught.value.field == "rate.burst"


def test_the_slowest_bucket_stays_within_the_calendar() -> None:
    pace = Rate(1, per=366 * 86400, burst=10).pace

    opens_at = take(None, pace, T0)

    assert full_at(opens_at, pace) == T0 + pace.interval


@pytest.mark.parametrize(
    "wrong", ["", "100", "100/", "/s", "100/1x", "-1/s", "1e3/s", "1.5/s", 5, ("1", "s"), b"1/s"]
)
def test_what_is_no_rate_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r'"100/1m", "5/s" or "10/30s"') as caught:
        make_rate(wrong, "rate_per_key")

    assert caught.value.field == "rate_per_key"
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["0/s", "1/0s", "10001/s", "1/1000d", "1/99999999999d", f"{2**64}/s"]
)
def test_a_rate_out_of_bounds_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_rate(wrong)

    assert (caught.value.field, wrong in str(caught.value)) == ("rate", True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"starts": 0},
        {"starts": True},
        {"starts": 1, "burst": 0},
        {"starts": 1, "burst": 1.5},
        {"starts": 1, "per": "1m"},
        {"starts": 1, "per": -1},
        {"starts": 1, "per": float("nan")},
        {"starts": 1, "per": 1e300},
    ],
)
def test_each_part_of_a_rate_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"rate\.(starts|per|burst)"):
        Rate(**wrong)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(100, per=60), "100/1m"),
        (Rate(5, burst=2), "5/1s, burst 2"),
        (Rate(1, per=86400), "1/1d"),
        (Rate(1, per=0.25), "1/250ms"),
        (Rate(1, per=timedelta(microseconds=1500)), "1/0.0015s"),
    ],
)
def test_a_rate_says_what_it_is(rate: Rate, text: str) -> None:
    assert str(rate) == text
    assert msgspec.json.decode(msgspec.json.encode(rate), type=Rate) == rate


def test_a_pace_is_never_faster_than_its_rate() -> None:
    assert Rate(7).pace == Pace(timedelta(microseconds=142858), 7)
    assert Rate(100, per=60, burst=20).pace == Pace(timedelta(milliseconds=600), 20)


PACE = Pace(SECOND, 3)


def test_a_full_bucket_gives_its_burst_and_then_one_an_interval() -> None:
    opens_at: datetime | None = None
    left = []
    for _ in range(3):
        left.append(tokens(opens_at, PACE, T0))
        opens_at = take(opens_at, PACE, T0)

    assert left == [3, 2, 1]
    assert opens_at == after(1)
    assert [tokens(opens_at, PACE, after(s)) for s in (0, 0.9, 1, 1.9, 2, 3, 99)] == [
        0,
        0,
        1,
        1,
        2,
        3,
        3,
    ]
    assert full_at(opens_at, PACE) == after(3)


def test_a_bucket_is_at_worst_empty() -> None:
    assert settle(after(3600), PACE, T0) == after(1)
    assert settle(after(-5), PACE, T0) == after(-5)


@given(
    interval=st.integers(100, 10_000_000),
    burst=st.integers(1, 20),
    gaps=st.lists(st.integers(0, 3_000_000), max_size=60),
)
def test_no_window_holds_more_than_the_burst_and_what_it_gains(
    interval: int, burst: int, gaps: list[int]
) -> None:
    """Whenever somebody asks, for as many as there are."""
    pace = Pace(timedelta(microseconds=interval), burst)
    opens_at: datetime | None = None
    now, starts = T0, []
    for gap in gaps:
        now += timedelta(microseconds=gap)
        for _ in range(tokens(opens_at, pace, now)):
            opens_at = take(opens_at, pace, now)
            starts.append(now)

    for first, began in enumerate(starts):
        for last, ended in enumerate(starts[first:], first):
            assert last - first + 1 <= burst + (ended - began) / pace.interval
