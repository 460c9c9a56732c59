"""The terms of filters, read from text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.core.filter_terms import parse_duration, parse_instant, parse_tag
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.seed_terms import StatusFilter, parse_statuses
from perdure.errors import InvalidInput

NOW = datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        ("1h", NOW - timedelta(hours=1)),
        ("0s", NOW),
        ("90d", NOW - timedelta(days=90)),
        (timedelta(minutes=5), NOW - timedelta(minutes=5)),
        ("2030-01-31T08:00", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31T08:00+02:00", datetime(2030, 1, 31, 6, tzinfo=UTC)),
        ("2030-01-30", datetime(2030, 1, 30, tzinfo=UTC)),
        (NOW, NOW),
    ],
)
def test_an_instant_is_written_as_text_or_as_how_long_ago(value: Any, instant: datetime) -> None:
    assert parse_instant(value, "since", NOW) == instant


@pytest.mark.parametrize(
    "value", ["soon", "1w", "", 5, ("1h",), NOW.replace(tzinfo=None), "999999d"]
)
def test_what_is_no_instant_is_refused_by_the_name_of_its_term(value: Any) -> None:
    with pytest.raises(InvalidInput, match="since: "):
        parse_instant(value, "since", NOW)


def test_text_that_is_no_length_of_time_names_none() -> None:
    assert parse_duration("12x") is None


@pytest.mark.parametrize(
    ("value", "pair"),
    [
        ("team=red", ("team", "red")),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
        (("a=b", "c"), ("a=b", "c")),
        (["team", "red"], ("team", "red")),
    ],
)
def test_a_tag_is_written_as_text_or_as_a_pair(value: Any, pair: tuple[str, str]) -> None:
    assert parse_tag(value, "tag") == pair


@pytest.mark.parametrize("value", ["team", "=red", "", 5, ("a", 1), ("a", "b", "c")])
def test_what_is_no_tag_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="tag: must be KEY=VALUE"):
        parse_tag(value, "tag")


def test_several_statuses_are_joined() -> None:
    found = parse_statuses(["failed", "requested", "queued"])

    assert found == StatusFilter((Status.FAILED, Status.QUEUED, Status.RETRYING))


def test_words_for_kinds_of_failures_are_joined_among_themselves() -> None:
    assert parse_statuses(["timed_out", "crashed"]).kinds == (
        FailureKind.TIMEOUT,
        FailureKind.CRASH,
    )
    with pytest.raises(InvalidInput, match="filter by failure_kind"):
        parse_statuses(["timed_out", "queued"])
