"""Values from outside that no part of the core can work with are refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from builders import CLIENT, T0, TASK, created, started
from perdure.core.decide import NewRun, decide_create
from perdure.core.json_text import as_it_will_be_read, in_utc
from perdure.core.run.bounds import check_bounds
from perdure.core.run.lifecycle import EventType
from perdure.core.webhook import (
    MAX_EVENTS,
    Hold,
    Interest,
    Progress,
    check_interest,
    check_progress,
)
from perdure.engine.runtime.ids import make_run_id
from perdure.errors import InvalidInput

TEXT: Any = "a=b"


def test_an_event_that_is_nested_too_deeply_to_be_written_is_refused() -> None:
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"in": value}

    with pytest.raises(InvalidInput, match="meta"):
        as_it_will_be_read(created(meta=value), "meta")


@pytest.mark.parametrize(
    "instant",
    [
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, tzinfo=UTC),
    ],
)
def test_an_instant_at_the_ends_of_the_calendar_is_refused(instant: datetime) -> None:
    with pytest.raises(InvalidInput, match="beyond the calendar"):
        in_utc(instant, "at")


def test_tags_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(InvalidInput, match="tags"):
        decide_create(NewRun(task=TASK, tags=TEXT), make_run_id(T0), CLIENT, T0)


def test_a_webhook_names_a_bounded_number_of_events() -> None:
    events = (EventType.SUCCEEDED.value,) * (MAX_EVENTS + 1)

    with pytest.raises(InvalidInput, match="at most"):
        check_interest(Interest(events=events))


NO_ZONE = datetime(2030, 1, 1)  # noqa: DTZ001  # that is the point
TOO_EARLY = datetime(1066, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("instant", [NO_ZONE, TOO_EARLY])
def test_a_webhooks_progress_has_instants_that_can_be_compared(instant: datetime) -> None:
    for progress in (
        Progress(cursor="1", next_try_at=instant),
        Progress(cursor="1", hold=Hold(token="t", until=instant)),
    ):
        with pytest.raises(InvalidInput, match="progress"):
            check_progress(progress)


def test_a_progress_with_good_instants_is_returned() -> None:
    progress = Progress(cursor="1", not_before=T0, hold=Hold(token="t", until=T0))

    assert check_progress(progress) is progress


def test_an_event_that_carries_nothing_of_a_workers_is_within_its_bounds() -> None:
    check_bounds(started())
