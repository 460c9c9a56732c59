"""What a loop cannot process is logged once per item and hour, with bounded memory."""

from __future__ import annotations

import logging

import pytest

from perdure.engine.clock import SystemClock
from perdure.engine.quarantine import LOG_INTERVAL, MAX_REMEMBERED_ITEMS, Quarantine
from perdure.errors import InvalidInput

ERROR = InvalidInput("body", "is damaged")


class HandClock(SystemClock):
    """A clock that a test moves."""

    seconds = 0.0

    def elapsed(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "perdure.quarantine"]


def test_an_item_is_logged_once_an_hour(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    quarantine = Quarantine(clock)

    for clock.seconds in range(0, 2 * int(LOG_INTERVAL.total_seconds()), 60):
        quarantine.report("webhook", "default/billing", ERROR)

    line = "webhook default/billing cannot be processed and is skipped: InvalidInput: "
    assert logged(caplog) == [f"{line}body: is damaged"] * 2


def test_items_are_told_apart_by_kind_and_id(
    clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine(clock)

    for kind, item_id in [("run", "1"), ("run", "2"), ("webhook", "1"), ("run", "1")]:
        quarantine.report(kind, item_id, ERROR)

    assert len(logged(caplog)) == 3


def test_any_number_of_items_take_bounded_memory_and_lines(
    clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine(clock)

    for number in range(3 * MAX_REMEMBERED_ITEMS):
        quarantine.report("run", str(number), ERROR)

    assert len(quarantine._logged_at) == MAX_REMEMBERED_ITEMS + 1
    assert len(logged(caplog)) == MAX_REMEMBERED_ITEMS + 1
    assert "beyond the first 1000 of this hour" in logged(caplog)[-1]


def test_an_error_that_is_not_perdures_own_is_logged_with_its_traceback(
    clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    try:
        raise TypeError("can't compare")
    except TypeError as error:
        Quarantine(clock).report("run", "1", error)

    [record] = caplog.records
    assert record.exc_info is not None
    assert "TypeError: can't compare" in record.getMessage()
