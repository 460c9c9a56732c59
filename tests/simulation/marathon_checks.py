"""What must hold for the long stories of schedules, however long they are."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from perdure.testing.virtual.time import EPOCH
from simulation.marathons import YEAR
from simulation.sweeps import Marathon


def check_minutes(story: Marathon, seconds: int) -> None:
    """Assert that each second was made once, although schedulers crashed."""
    assert story.problem is None, story.problem
    expected = {EPOCH + timedelta(seconds=n) for n in range(2, seconds + 1)}
    assert expected <= story.times["tick"] <= expected | {EPOCH + timedelta(seconds=1)}
    assert story.crashes >= seconds // 60
    assert story.seen["schedulers met"] > seconds // 6


def check_years(story: Marathon, years: int) -> None:
    """Assert that each schedule has the times that its calendar says."""
    assert story.problem is None, story.problem
    assert story.crashes >= years
    berlin = sorted(_local_dates(story.times["berlin"], "Europe/Berlin"))
    first, last = berlin[0], (EPOCH + years * YEAR).date()
    assert berlin == [first + timedelta(days=n) for n in range((last - first).days + 1)]
    for name, zone in (("new_york", "America/New_York"), ("lord_howe", "Australia/Lord_Howe")):
        sundays = _local_dates(story.times[name], zone)
        assert len(sundays) == len(story.times[name]) >= 52 * years
        assert {day.weekday() for day in sundays} == {6}
    assert len(story.times["apia"]) == 12 * years
    # Hourly on the last Sundays of March and October: by elapsed time, however long the day.
    assert len(story.times["london"]) == years * (23 + 25)


def _local_dates(times: set[datetime], zone: str) -> list[date]:
    return [time.astimezone(ZoneInfo(zone)).date() for time in times]
