"""The kit's clock moves schedules, too."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, Context, Retry, cron, every
from perdure.core.run.lifecycle import Status
from perdure.core.schedule import SkipReason
from perdure.testing import Kit

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    return perdure_kit


@pytest.fixture
def app(perdure_app: App) -> App:
    return perdure_app


def test_a_schedule_fires_when_time_gets_there_and_not_before(kit: Kit, app: App) -> None:
    fired: list[datetime] = []

    @app.schedule(every(minutes=10))
    @app.task
    def note() -> None:
        fired.append(kit.now)

    start = kit.now
    first_of_all = kit.next_due()
    kit.run_until_idle()
    before = list(fired)
    due = kit.next_due()
    kit.advance(25 * MINUTE)

    assert (before, due, first_of_all) == ([], start + 10 * MINUTE, start + 10 * MINUTE)
    assert fired == [start + 10 * MINUTE, start + 20 * MINUTE]


def test_doing_everything_does_not_wait_for_schedules(kit: Kit, app: App) -> None:
    fired: list[int] = []

    @app.schedule(every(minutes=10))
    @app.task
    def note() -> None:
        fired.append(1)

    kit.run_until_done()

    assert fired == []


def test_a_schedule_made_meanwhile_fires_too(kit: Kit, app: App) -> None:
    fired: list[int] = []

    @app.task
    def note() -> None:
        fired.append(1)

    kit.run_until_idle()
    app.sync.schedules.create("hourly", every(hours=1), note)
    kit.advance(3 * HOUR)
    app.sync.schedules.pause("hourly")
    kit.advance(3 * HOUR)

    assert len(fired) == 3


@pytest.mark.perdure_app(start="2026-03-28T00:00+00:00")
def test_a_daily_schedule_fires_once_in_the_short_night(kit: Kit, app: App) -> None:
    fired: list[datetime] = []

    @app.schedule(cron("30 2 * * *", tz="Europe/Berlin"))
    @app.task
    def note() -> None:
        fired.append(kit.now)

    kit.advance(timedelta(days=3))

    assert fired == [
        datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    ]


def test_forbidden_overlaps_wait_and_none_is_skipped(kit: Kit, app: App) -> None:
    active: list[int] = []
    most: list[int] = []

    @app.schedule(every(minutes=1), overlap="forbid")
    @app.task
    async def slow() -> None:
        active.append(1)
        most.append(len(active))
        await asyncio.sleep(150)
        active.pop()

    kit.advance(4 * MINUTE)
    app.sync.schedules.pause("slow")
    kit.advance(10 * MINUTE)

    assert most == [1, 1, 1, 1]
    assert {run.status for run in kit.triggered()} == {Status.SUCCEEDED}


def test_only_the_newest_waits(kit: Kit, app: App) -> None:
    @app.schedule(every(minutes=1), overlap="queue_latest")
    @app.task
    async def slow() -> None:
        await asyncio.sleep(210)

    kit.advance(4 * MINUTE)
    statuses = [(run.status, run.reason) for run in kit.triggered()]

    assert statuses == [
        (Status.RUNNING, None),
        (Status.SKIPPED, SkipReason.SUPERSEDED),
        (Status.SKIPPED, SkipReason.SUPERSEDED),
        (Status.QUEUED, None),
    ]


def test_a_replaced_one_stops_and_the_next_begins(kit: Kit, app: App) -> None:
    @app.schedule(every(minutes=1), overlap="replace")
    @app.task
    async def slow() -> None:
        await asyncio.sleep(90)

    kit.advance(3 * MINUTE + timedelta(seconds=30))

    assert [run.status for run in kit.triggered()] == [
        Status.CANCELLED,
        Status.CANCELLED,
        Status.RUNNING,
    ]


def test_a_retrying_occurrence_holds_its_slot(kit: Kit, app: App) -> None:
    began: list[tuple[datetime | None, int]] = []

    @app.schedule(every(minutes=1))
    @app.task(retry=Retry(max_attempts=2, delays=[150]))
    def shaky(ctx: Context) -> None:
        began.append((ctx.run.source.nominal_time, ctx.attempt))
        if len(began) == 1:
            raise ValueError("not yet")

    start = kit.now
    kit.advance(4 * MINUTE)

    times = [time - start for time, _ in began if time is not None]
    assert [(time // MINUTE, attempt) for time, (_, attempt) in zip(times, began, strict=True)] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (3, 1),
        (4, 1),
    ]


def test_a_scheduled_run_survives_a_crash_of_its_worker(kit: Kit, app: App) -> None:
    attempts: list[int] = []

    @app.schedule(every(hours=1))
    @app.task
    def note(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        kit.point("half way")

    kit.crash_at_point("half way")
    kit.advance(HOUR + MINUTE)

    assert attempts == [1, 2]
    assert [run.status for run in kit.triggered()] == [Status.SUCCEEDED]
