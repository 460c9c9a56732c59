"""Every time of a schedule is on record exactly once."""

from __future__ import annotations

from datetime import datetime

import pytest
from msgspec.structs import replace

from perdure.core.invariants import check_occurrences
from perdure.core.schedule import Schedule, SkippedSpan, SkipReason
from scheduling import HOUR, NINE, a_schedule

TIMES = [NINE + n * HOUR for n in range(1, 7)]


def a_span(first: datetime, last: datetime, count: int) -> SkippedSpan:
    return SkippedSpan(
        schedule_id="digest",
        environment="default",
        first=first,
        last=last,
        count=count,
        reason=SkipReason.MISFIRED,
        recorded_at=last,
    )


SPAN = a_span(TIMES[1], TIMES[3], 3)
REST = [TIMES[0], *TIMES[4:]]


@pytest.fixture
def schedule() -> Schedule:
    return replace(a_schedule(NINE), cursor=TIMES[-1])


def test_runs_alone_or_runs_and_spans_may_cover_all_times(schedule: Schedule) -> None:
    assert check_occurrences(schedule, TIMES, []) == []
    assert check_occurrences(schedule, REST, [SPAN]) == []
    assert check_occurrences(schedule, [], [a_span(TIMES[0], TIMES[-1], 6)]) == []
    assert check_occurrences(schedule, REST[:2], [SPAN, a_span(TIMES[5], TIMES[5], 1)]) == []


def test_what_lies_before_is_not_judged(schedule: Schedule) -> None:
    old = a_span(NINE - 5 * HOUR, NINE - 3 * HOUR, 99)

    assert check_occurrences(schedule, [NINE - HOUR, *TIMES], [old]) == []
    assert check_occurrences(schedule, TIMES[3:], [], since=TIMES[2]) == []


@pytest.mark.parametrize(
    ("times", "spans", "problem"),
    [
        (TIMES[1:], [], "2026-03-02T10:00:00Z has no record"),
        ([*TIMES, TIMES[0]], [], "2026-03-02T10:00:00Z has 2 runs"),
        ([*TIMES, TIMES[0] + HOUR / 2], [], "2026-03-02T10:30:00Z is none of its times"),
        ([*REST, TIMES[2]], [SPAN], "2026-03-02T12:00:00Z has a run, and lies in a span of skips"),
        (
            REST,
            [a_span(TIMES[1], TIMES[3], 4)],
            "a span from 2026-03-02T11:00:00Z does not count 4",
        ),
        (
            REST,
            [SPAN, a_span(TIMES[3], TIMES[3], 1)],
            "two spans of skips hold 2026-03-02T13:00:00Z",
        ),
    ],
)
def test_whatever_is_wrong_is_told(
    schedule: Schedule, times: list[datetime], spans: list[SkippedSpan], problem: str
) -> None:
    assert check_occurrences(schedule, times, spans) == [problem]


def test_of_many_problems_a_few_are_told() -> None:
    schedule = replace(a_schedule(NINE), cursor=NINE + 500 * HOUR)

    assert len(check_occurrences(schedule, [], [])) == 5
