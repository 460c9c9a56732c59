"""What stays of a schedule's times, and what is said about them later, whatever has changed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import raw
from fix_app import QUICK
from perdure import App, at, cron, every
from perdure.core.run.lifecycle import Status
from perdure.core.schedule import SkipReason, Verdict
from perdure.errors import InvalidInput, TaskNotFound
from perdure.testing import Kit
from schedule_kit import rewound
from scheduling import HOUR, MINUTE, SECOND

HOURLY = cron("0 * * * *")


def on_the_day(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def app(storage_url: str) -> App:
    made = App(storage_url, defaults=QUICK)

    @made.task(name="job")
    async def job() -> None: ...

    return made


def slow(**settings: Any) -> App:
    """Each hour a run that takes two and a half."""
    made = App("sqlite:///kit.db")

    @made.task(name="job")
    async def job() -> None:
        await asyncio.sleep(9000)

    made.schedule(HOURLY, **settings)(job)
    return made


def test_an_old_skip_is_explained_by_the_policy_it_was_decided_by() -> None:
    app = slow(overlap="skip", misfire="skip")
    with Kit(app, start=on_the_day(8, 30)) as kit:
        schedules = app.sync.schedules
        kit.advance_to(on_the_day(10, 20))
        schedules.pause("job", "first", by="ann")
        kit.advance_to(on_the_day(12, 30))
        schedules.resume("job", by="bob")
        kit.advance(MINUTE)
        before = [str(schedules.why("job", on_the_day(hour))) for hour in (10, 11)]
        [holder] = [run for run in kit.triggered() if run.source.nominal_time == on_the_day(9)]
        schedules.update("job", overlap="allow", max_concurrency=7, misfire="catch_up")
        schedules.pause("job", "second", by="eve")
        schedules.resume("job")
        after = [str(schedules.why("job", on_the_day(hour))) for hour in (10, 11)]

    assert before == after
    assert after == [
        (
            "job at 2026-01-01T10:00:00Z: no slot was free (of 1; held by "
            f"{holder.id}), and the overlap policy was skip."
        ),
        (
            "job at 2026-01-01T11:00:00Z: the schedule was paused from 2026-01-01T10:20:00Z until "
            "2026-01-01T12:30:00Z by ann (first), and the misfire policy was skip."
        ),
    ]


def test_what_was_replaced_or_superseded_names_the_newer_one() -> None:
    replaced, latest = slow(overlap="replace"), slow(overlap="queue_latest")
    with Kit(replaced, start=on_the_day(8, 30)) as kit:
        kit.advance_to(on_the_day(10, 30))
        stopped = str(replaced.sync.schedules.why("job", on_the_day(9)))
    with Kit(latest, start=on_the_day(8, 30)) as kit:
        kit.advance_to(on_the_day(11, 20))
        superseded = latest.sync.schedules.why("job", on_the_day(10))

    assert "which was cancelled. At 2026-01-01 10:00" in stopped
    assert stopped.endswith("replaced by the occurrence of 2026-01-01T10:00:00Z.")
    assert superseded.reason == SkipReason.SUPERSEDED
    assert str(superseded).endswith(
        ": the occurrence of 2026-01-01T11:00:00Z came before it had begun, and the overlap "
        "policy was queue_latest."
    )


async def test_a_run_that_failed_says_why_and_one_made_by_hand_who_asked(app: App) -> None:
    async with app:
        made = await app.schedules.create("x", every(60), "job")
        nominal = made.created_at.replace(second=0, microsecond=0) - MINUTE
        [run] = (await app.schedules.backfill("x", nominal, nominal, "after all", by="ann")).runs
        waiting = await app.schedules.why("x", nominal)
        await app.runs.cancel(run, "not any more", by="bob")
        cancelled = await app.schedules.why("x", nominal)

    assert f"its run {run.id} (made by ann: after all) has not begun" in str(waiting)
    assert "was cancelled before it had begun. At " in str(cancelled)
    assert str(cancelled).endswith("it was cancelled by operator bob: not any more.")


async def test_a_time_that_clocks_jumped_over_is_explained(app: App) -> None:
    night = datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    async with app:
        await app.schedules.create("fires", cron("30 2 * * *", tz="Europe/Berlin"), "job")
        await app.schedules.create(
            "skips", cron("30 2 * * *", tz="Europe/Berlin", gap="skip"), "job"
        )
        fires = await app.schedules.why("fires", night)
        skips = await app.schedules.why("skips", night)

    assert fires.instant == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert "for 02:30, which did not exist that night" in str(fires)
    assert skips.verdict is Verdict.NOT_AN_OCCURRENCE
    assert "02:30 did not exist that night" in str(skips)


# The last ones


async def test_the_last_ones_are_taken_from_the_record_whatever_the_cadence_is_now(
    app: App,
) -> None:
    async with app:
        await app.schedules.create("x", every(60), "job", misfire="catch_up")
        await rewound(app, "x", 200 * SECOND)
        await app.schedules.update("x", cadence=at(datetime(2100, 1, 1, tzinfo=UTC)))
        by_cadence = await app.schedules.last("x")
        await app.schedules.trigger("x", "customer asked", by="ann")
        with_manual = await app.schedules.last("x")
        newest = await app.schedules.last("x", limit=1)

    assert len(by_cadence.runs) in (3, 4)
    times = [run.source.nominal_time for run in by_cadence.runs]
    assert times == sorted(times)  # type: ignore[type-var]  # each has one
    assert [run.source.reason for run in with_manual.runs[-1:]] == ["customer asked"]
    assert newest.runs == with_manual.runs[-1:]


def test_many_spans_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.schedules.history.MOST_ON_A_PAGE", 2)
    app = slow(enabled=False)
    with Kit(app, start=on_the_day(8, 30)) as kit:
        for _ in range(5):
            kit.advance(HOUR)
            app.sync.schedules.update("job", priority=1)
        every_one = app.sync.schedules.last("job")
        newest = app.sync.schedules.last("job", limit=1)

    assert [span.first for span in every_one.spans] == [on_the_day(9 + n) for n in range(5)]
    assert newest.spans == every_one.spans[-1:]


# Deleting, disabling, and tasks that nobody knows


async def test_what_was_due_is_decided_before_a_deletion(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "job", misfire="catch_up")
        await rewound(app, "x", 200 * SECOND)
        await app.schedules.delete("x", "not needed", by="ann")
        last = await app.schedules.last("x")

    assert len(last.runs) in (3, 4)
    assert {run.status for run in last.runs} == {Status.QUEUED}


async def test_what_a_deletion_finds_held_is_on_record(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "job")
        before = await rewound(app, "x", 200 * SECOND)
        await app.schedules.pause("x", "holiday", by="bob")
        await app.schedules.delete("x", "not needed", by="ann")
        told = await app.schedules.why("x", before.cursor.replace(second=0, microsecond=0) + MINUTE)

    assert (told.verdict, told.reason) == (Verdict.SKIPPED, SkipReason.DELETED)
    assert "by ann (not needed) before that was over" in str(told)


async def test_a_schedule_is_disabled_and_enabled_and_that_is_known_later(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "job")
        await app.schedules.update("x", enabled=False, by="ann", reason="too loud")
        before = await rewound(app, "x", 200 * SECOND)
        time = before.cursor.replace(second=0, microsecond=0) + MINUTE
        disabled = await app.schedules.why("x", time)
        with pytest.raises(InvalidInput, match="is disabled"):
            await app.schedules.resume("x")
        enabled_at = await app.storage.now()
        await app.schedules.update("x", enabled=True, by="bob")
        enabled = await app.schedules.why("x", time)
        times = [run.source.nominal_time for run in (await app.runs.list()).runs]

    assert disabled.verdict is Verdict.HELD
    assert str(disabled).endswith("by ann (too loud).")
    assert enabled.reason is SkipReason.DISABLED
    assert [time for time in times if time is None or time <= enabled_at] == []
    assert "by ann (too loud) (one of" in str(enabled)


async def test_a_schedule_whose_task_nobody_knows_may_be_changed_and_deleted(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "job")
        before = await rewound(app, "x", 200 * SECOND)
        raw.execute(app.url, "DELETE FROM perdure_records WHERE name = 'job'")
        del app.tasks["job"]
        updated = await app.schedules.update("x", priority=3, payload={"any": 1})
        with pytest.raises(TaskNotFound):
            await app.schedules.update("x", task="nobody")
        await app.schedules.delete("x")
        told = await app.schedules.why("x", before.cursor.replace(second=0, microsecond=0) + MINUTE)

    assert updated.cursor == before.cursor
    assert "while nobody knew its task job" in str(told)


# At the door


async def test_a_time_that_has_passed_is_refused(app: App) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    async with app:
        await app.schedules.create("x", HOURLY, "job")
        with pytest.raises(InvalidInput, match="at: 2020-01-01T00:00:00Z has passed"):
            await app.schedules.create("y", at(past), "job")
        with pytest.raises(InvalidInput, match="end: no time is left"):
            await app.schedules.update("x", cadence=cron("@daily", end=past))
        assert [it.id for it in await app.schedules.list()] == ["x"]


async def test_what_makes_no_sense_is_refused_by_name(app: App) -> None:
    now = datetime.now(UTC)
    async with app:
        await app.schedules.create("x", HOURLY, "job")
        with pytest.raises(InvalidInput, match="what: must be made by cron, every or at"):
            await app.schedules.preview(5)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(InvalidInput, match="reason: must be text"):
            await app.schedules.pause("x", 5)  # type: ignore[arg-type]  # the same
        with pytest.raises(InvalidInput, match="end: must not lie before start"):
            await app.schedules.count_backfill("x", now, now - HOUR)


def test_a_schedule_needs_its_cadence_at_once(app: App) -> None:
    with pytest.raises(InvalidInput, match="cadence: must be made by cron, every or at"):
        app.schedule(app.tasks["job"])  # type: ignore[arg-type]  # as if it were no function
