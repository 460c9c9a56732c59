"""Five schedulers for ten minutes, three for ten years: each time exactly once, none missing."""

from __future__ import annotations

from concurrent.futures import Executor
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from perdure.testing.simulation.marathons import YEAR
from perdure.testing.virtual import EPOCH
from simulation.sweeps import Marathon, run_minutes, run_years

# Ten years take a minute; on a busy machine, several.
pytestmark = pytest.mark.timeout(900)


def test_five_schedulers_make_every_second_of_ten_minutes_once(pool: Executor) -> None:
    """While they crash, are paused, wait for a storage that fails, and their clocks are wrong."""
    story: Marathon = pool.submit(run_minutes, 7).result()

    assert story.problem is None
    expected = {EPOCH + timedelta(seconds=n) for n in range(2, 601)}
    assert expected <= story.times["tick"] <= expected | {EPOCH + timedelta(seconds=1)}
    assert story.crashes >= 10
    assert story.seen["schedulers met"] > 100


def test_ten_years_of_mixed_schedules_have_no_miss_and_no_double(pool: Executor) -> None:
    story: Marathon = pool.submit(run_years, 3).result()

    assert story.problem is None
    assert story.crashes >= 10
    berlin = sorted(_local_dates(story.times["berlin"], "Europe/Berlin"))
    first, last = berlin[0], (EPOCH + 10 * YEAR).date()
    assert berlin == [first + timedelta(days=n) for n in range((last - first).days + 1)]
    for name, zone in (("new_york", "America/New_York"), ("lord_howe", "Australia/Lord_Howe")):
        sundays = _local_dates(story.times[name], zone)
        assert len(sundays) == len(story.times[name]) >= 521
        assert {day.weekday() for day in sundays} == {6}
    assert len(story.times["apia"]) == 120
    # Hourly on the last Sundays of March and October: by elapsed time, however long the day.
    assert len(story.times["london"]) == 10 * (23 + 25)


def _local_dates(times: set[datetime], zone: str) -> list[date]:
    return [time.astimezone(ZoneInfo(zone)).date() for time in times]
