"""When to try again: the seeds' formulas, and that no delay escapes its bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.run.backoff import Backoff, BackoffKind, check_backoff, retry_delay
from perdure.errors import InvalidInput


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def delays(backoff: Backoff, count: int) -> list[float]:
    return [retry_delay(backoff, n).total_seconds() for n in range(1, count + 1)]


def test_exponential_doubles_up_to_the_cap() -> None:
    assert delays(Backoff(), 14) == [min(2.0 ** (n - 1), 3600.0) for n in range(1, 15)]


def test_the_wakeplane_defaults_wait_thirty_and_sixty_seconds() -> None:
    backoff = Backoff(initial=seconds(30), maximum=seconds(900))

    assert delays(backoff, 2) == [30.0, 60.0]


def test_the_wakeplane_cap_holds_the_second_delay() -> None:
    backoff = Backoff(initial=seconds(600), maximum=seconds(900))

    assert delays(backoff, 2) == [600.0, 900.0]


def test_the_factor_is_free() -> None:
    assert delays(Backoff(factor=3.0), 4) == [1.0, 3.0, 9.0, 27.0]


def test_linear_grows_by_its_base_up_to_the_cap() -> None:
    backoff = Backoff(kind=BackoffKind.LINEAR, initial=seconds(5), maximum=seconds(12))

    assert delays(backoff, 4) == [5.0, 10.0, 12.0, 12.0]


def test_fixed_stays() -> None:
    assert delays(Backoff(kind=BackoffKind.FIXED, initial=seconds(7)), 3) == [7.0] * 3


def test_a_list_repeats_its_last_delay() -> None:
    backoff = Backoff(kind=BackoffKind.LIST, delays=(seconds(1), seconds(5), seconds(9999)))

    assert delays(backoff, 5) == [1.0, 5.0, 3600.0, 3600.0, 3600.0]


@pytest.mark.parametrize(
    ("jitter", "expected"), [(-1.0, 8.0), (-0.5, 9.0), (0.5, 11.0), (1.0, 12.0)]
)
def test_jitter_spreads_by_a_fifth_either_way(jitter: float, expected: float) -> None:
    backoff = Backoff(kind=BackoffKind.FIXED, initial=seconds(10))

    assert retry_delay(backoff, 1, jitter) == seconds(expected)


def test_no_failure_at_all_counts_as_the_first() -> None:
    assert retry_delay(Backoff(), 0) == retry_delay(Backoff(), -5) == seconds(1)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("backoff", {"initial": seconds(-1)}),
        ("backoff", {"maximum": seconds(-1)}),
        ("backoff.factor", {"factor": 0.9}),
        ("backoff.factor", {"factor": 1001.0}),
        ("backoff.factor", {"factor": float("nan")}),
        ("backoff.spread", {"spread": -0.1}),
        ("backoff.spread", {"spread": 1.1}),
        ("backoff.delays", {"kind": BackoffKind.LIST}),
        ("backoff.delays", {"delays": (seconds(1), seconds(-1))}),
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(field: str, fields: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_backoff(Backoff(**fields))

    assert caught.value.field == field


durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365))
backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    initial=durations,
    factor=st.floats(1.0, 1000.0),
    maximum=durations,
    spread=st.floats(0.0, 1.0),
    delays=st.lists(durations, min_size=1, max_size=4).map(tuple),
)


@given(backoffs, st.integers(0, 10**12), st.floats(-1.0, 1.0))
def test_every_delay_lies_between_zero_and_the_cap_with_its_spread(
    backoff: Backoff, failures: int, jitter: float
) -> None:
    delay = retry_delay(backoff, failures, jitter)

    assert timedelta(0) <= delay
    assert delay.total_seconds() <= backoff.maximum.total_seconds() * (1 + backoff.spread) + 1e-3


@given(backoffs, st.integers(1, 1000))
def test_without_a_list_delays_never_shrink(backoff: Backoff, failures: int) -> None:
    if backoff.kind is not BackoffKind.LIST:
        assert retry_delay(backoff, failures) <= retry_delay(backoff, failures + 1)
