"""The scheduler service, and schedules that code defines."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

import raw
from deadlocks import deadlocks
from fix_app import QUICK
from perdure import App, Context, at, cron, every
from perdure.core.invariants import check_occurrences
from perdure.core.run.lifecycle import Status
from perdure.core.schedule import DefinedBy, SkipReason
from perdure.errors import InvalidInput, InvalidTask, StorageRefused
from schedule_kit import rewound, runs_of
from scheduling import MINUTE, SECOND
from storage_kit import claim, failure, stored, success, wait_until

FAR = at(datetime(2100, 1, 1, tzinfo=UTC))
PATIENT = replace(
    QUICK,
    poll=timedelta(minutes=5),
    maintenance_tick=timedelta(minutes=5),
    lease_ttl=timedelta(hours=1),
)
"""Whatever happens soon has not waited for a poll."""
SOON = 20


def with_tasks(app: App) -> App:
    @app.task
    async def digest(size: int = 1) -> int:
        return size

    @app.task
    async def other() -> None: ...

    return app


@pytest.fixture
def app(storage_url: str) -> App:
    return with_tasks(App(storage_url, defaults=PATIENT))


# The service


async def test_a_schedule_runs_when_its_time_comes(app: App) -> None:
    done = asyncio.Event()

    @app.schedule(every(1))
    @app.task
    async def tick() -> None:
        done.set()

    async with app.run_all(), asyncio.timeout(SOON):
        await done.wait()
        first = await app.schedules.get("tick")
        page = await app.runs.list(task="tick")

    assert all(
        run.source.nominal_time and run.source.nominal_time.microsecond == 0 for run in page.runs
    )
    assert first.cursor.microsecond == 0


async def test_a_sleeping_scheduler_is_woken_by_a_new_schedule(app: App) -> None:
    done = asyncio.Event()

    @app.task
    async def announced() -> None:
        done.set()

    async with app, app.scheduler(), app.worker(), asyncio.timeout(SOON):
        soon = at(await app.storage.now() + timedelta(milliseconds=300))
        await app.schedules.create("soon", soon, "announced")
        await done.wait()


async def test_one_pass_decides_all_that_is_due_however_many(app: App) -> None:
    async with app:
        for n in range(3):
            await app.schedules.create(f"s{n}", every(60), "digest", misfire="catch_up")
            await rewound(app, f"s{n}", timedelta(minutes=90))
        await app.tick()
        counts = [
            len(await runs_of(app.storage, await app.schedules.get(f"s{n}"))) for n in range(3)
        ]

    assert all(count in (90, 91) for count in counts)


async def test_more_than_a_step_holds_is_done_in_several(app: App) -> None:
    async with app:
        await app.schedules.create(
            "x", every(1), "digest", misfire="catch_up", catch_up_limit=2500, overlap="allow"
        )
        await rewound(app, "x", timedelta(seconds=2400))
        await app.scheduler().run_once()
        runs = await runs_of(app.storage, await app.schedules.get("x"))

    times = [run.source.nominal_time for run in runs if run.source.nominal_time]
    assert 2400 <= len(times) <= 2420
    assert [b - a for a, b in pairwise(times)] == [SECOND] * (len(times) - 1)


async def test_many_schedulers_make_each_occurrence_once(app: App) -> None:
    async with app:
        for n in range(5):
            await app.schedules.create(f"s{n}", every(1), "digest", misfire="catch_up")
            await rewound(app, f"s{n}", timedelta(seconds=200))
        await asyncio.gather(*(app.scheduler().run_once() for _ in range(5)))
        for n in range(5):
            runs = await runs_of(app.storage, await app.schedules.get(f"s{n}"))
            times = [run.source.nominal_time for run in runs]
            assert len(set(times)) == len(times) >= 200


async def test_a_schedule_whose_task_nobody_knows_keeps_no_other_and_that_is_said_once(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app:
        await app.schedules.create("lost", every(60), "other")
        await app.schedules.create("fine", every(60), "digest")
        await rewound(app, "lost", 2 * MINUTE)
        await rewound(app, "fine", MINUTE)
        raw.execute(app.url, "DELETE FROM perdure_records WHERE name = 'other'")
        monkeypatch.setattr("perdure.engine.schedules.scheduler.PATIENCE", 0)
        scheduler = app.scheduler()
        await scheduler.run_once()
        await scheduler.run_once()
        fine = await runs_of(app.storage, await app.schedules.get("fine"))
        schedule = await app.schedules.get("lost")
        lost = await runs_of(app.storage, schedule)
        assert schedule.next_at is not None
        why = await app.schedules.why("lost", schedule.next_at)

    assert (why.verdict, "no task 'other' is known" in why.sentence) == ("undecided", True)
    assert (len(fine) >= 1, lost) == (True, [])
    [said] = [r for r in caplog.records if r.name == "perdure.scheduler"]
    assert (said.levelname, said.exc_info, said.getMessage()) == (
        *("WARNING", None),
        "schedule lost waits: no app or worker has made its task other known",
    )


async def test_a_schedule_that_cannot_be_read_or_stored_is_said_and_passed_by(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app:
        await app.schedules.create("strange", every(60), "digest")
        await app.schedules.create("big", every(60), "digest")
        await rewound(app, "strange", MINUTE)
        await rewound(app, "big", MINUTE)
        raw.execute(app.url, "UPDATE perdure_schedules SET body = '{}' WHERE name = 'strange'")

        async def refuse(steps: Any) -> Any:
            return [StorageRefused("too big") for _ in steps]

        monkeypatch.setattr(app.storage, "put_schedules", refuse)
        await app.scheduler().run_once()

    said = {(r.getMessage(), getattr(r, "schedule_id", None)) for r in caplog.records}
    assert ("unreadable schedule strange", "strange") in said
    assert ("cannot store the occurrences of schedule big: too big", "big") in said


async def test_a_time_computed_by_others_is_computed_anew_if_it_is_none_here(app: App) -> None:
    """As when another machine knows other rules for a zone."""
    async with app:
        await app.schedules.create("x", FAR, "digest")
        past = "0" if app.url.startswith("sqlite") else "'2020-01-01T00:00:00Z'"
        raw.execute(app.url, f"UPDATE perdure_schedules SET next_at = {past}")

        await app.scheduler().run_once()
        due = await app.storage.due_schedules("default", limit=5)

        assert (due.schedules, due.next_at) == ((), FAR.instant)
        assert (await app.runs.list()).runs == ()


# Overlap and slots


async def test_a_retrying_occurrence_keeps_its_slot(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", misfire="catch_up")
        await rewound(app, "x", 180 * SECOND)
        await app.scheduler().run_once()
        [first] = (await claim(app.storage, tasks=("digest",))).runs
        await stored(app.storage, failure(first))
        while_retrying = await claim(app.storage, tasks=("digest",))
        [retrying] = (await app.runs.list(status="retrying")).runs
        waiting = (await app.runs.list(status="queued")).runs
        why = [await app.runs.why(run.id) for run in waiting]

        await app.runs.cancel(retrying.id)
        after = await claim(app.storage, tasks=("digest",))

    assert retrying.holds_schedule_slot
    assert while_retrying.runs == ()
    assert len(waiting) >= 2
    assert all("schedule_full" in it.codes for it in why)
    assert all(retrying.id in it.sentence for it in why)
    assert len(after.runs) == 1


async def test_replacing_at_a_concurrency_of_one_stops_the_active_one(storage_url: str) -> None:
    app = App(storage_url, defaults=replace(QUICK, poll=timedelta(milliseconds=50)))
    begun: asyncio.Queue[str] = asyncio.Queue()

    @app.task
    async def slow(ctx: Context) -> None:
        begun.put_nowait(ctx.run.id)
        await asyncio.Event().wait()

    async with app, app.worker(), asyncio.timeout(SOON):
        await app.schedules.create("x", every(60), "slow", overlap="replace")
        await rewound(app, "x", 61 * SECOND)
        await app.scheduler().run_once()
        first = await begun.get()
        await come_again(app, "x")
        await app.scheduler().run_once()
        second = await begun.get()
        stopped = await app.runs.get(first)
        await app.runs.cancel(second)

    assert second != first
    assert stopped.status is Status.CANCELLED
    assert "replaced by the occurrence" in (stopped.reason or "")


async def come_again(app: App, name: str) -> None:
    """Another cadence, of which one time has just come."""
    soon = await app.storage.now() + timedelta(milliseconds=80)
    await app.schedules.update(name, cadence=every(3600, anchor=soon))
    await wait_until(app.storage, soon)


async def test_skipping_leaves_a_record_while_one_is_active(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", overlap="skip")
        handle = await app.schedules.trigger("x", "to be busy")
        claimed = await claim(app.storage, 1, tasks=("digest",))
        assert [run.id for run in claimed.runs] == [handle.id]
        await rewound(app, "x", 61 * SECOND)
        await app.scheduler().run_once()
        runs = await runs_of(app.storage, await app.schedules.get("x"))

    assert {(run.status, run.reason) for run in runs} == {(Status.SKIPPED, SkipReason.OVERLAP)}


# Code


async def test_schedules_of_code_are_stored_when_the_app_opens(app: App) -> None:
    nine = cron("0 9 * * MON-FRI", tz="Europe/Berlin")
    digest = app.tasks["digest"]
    app.schedule(nine, misfire="run_once", overlap="forbid")(digest)
    app.schedule(FAR, name="big", payload={"size": 9}, queue="slow", priority=3)(digest)

    async with app:
        found = {it.id: it for it in await app.schedules.list()}

    assert set(found) == {"digest", "big"}
    assert found["digest"].cadence == nine
    assert found["big"].definition.priority == 3
    assert {it.defined_by for it in found.values()} == {DefinedBy.CODE}


async def test_opening_again_changes_nothing_and_new_code_changes_what_it_says(
    storage_url: str,
) -> None:
    def code(**settings: Any) -> App:
        app = with_tasks(App(storage_url, defaults=PATIENT))
        app.schedule(FAR, **settings)(app.tasks["digest"])
        return app

    async def opened(app: App) -> Any:
        async with app:
            return await app.schedules.get("digest")

    first = await opened(code(priority=3))
    again = await opened(code(priority=3))
    changed = await opened(code(priority=4))

    assert again == first
    assert (changed.version, changed.definition.priority) == (2, 4)


async def test_what_an_operator_changed_stays_until_code_says_something_new(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="perdure.schedules")

    def code(priority: int) -> App:
        app = with_tasks(App(storage_url, defaults=PATIENT))
        app.schedule(FAR, priority=priority)(app.tasks["digest"])
        return app

    async with code(3) as app:
        await app.schedules.update("digest", priority=9)
    async with code(3) as app:
        kept = await app.schedules.get("digest")
    async with code(5) as app:
        changed = await app.schedules.get("digest")
        await app.schedules.delete("digest")
    async with code(6):
        pass

    assert (kept.definition.priority, changed.definition.priority) == (9, 5)
    assert caplog.messages == [
        "schedule digest added, as code has it",
        (
            "schedule digest stays as it is, not as code has it: "
            "an operator changed it and its definition has not changed since"
        ),
        "schedule digest changed to what code has: priority",
        "schedule digest changed to what code has: priority, it was deleted",
    ]


async def test_code_that_states_a_time_gone_by_starts_and_warns_once(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def code(hour: int) -> App:
        app = with_tasks(App(storage_url, defaults=PATIENT))
        app.schedule(at(datetime(2020, 1, 1, hour, tzinfo=UTC)))(app.tasks["digest"])
        return app

    for hour in (9, 9, 10):
        async with code(hour) as app:
            assert (await app.schedules.get("digest")).next_at is None

    assert [message.split(";")[0] for message in caplog.messages] == [
        f"schedule digest has no time to come: at: 2020-01-01T{hour}:00:00Z has passed"
        for hour in ("09", "10")
    ]


async def test_orphans_are_reported_by_the_app_that_has_their_task_and_stay(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = with_tasks(App(storage_url, defaults=PATIENT))
    app.schedule(FAR)(app.tasks["digest"])
    async with app:
        pass
    stranger = App(storage_url, defaults=PATIENT)
    stranger.task(name="stranger")(_nothing)
    async with stranger, App(storage_url):
        assert caplog.messages == []

    async with with_tasks(App(storage_url, defaults=PATIENT)) as app, app.twin():
        assert [it.id for it in await app.schedules.list()] == ["digest"]

    [said] = [r for r in caplog.records if r.name == "perdure.schedules"]
    assert said.schedules == ["digest"]  # type: ignore[attr-defined]  # its field
    assert said.getMessage() == (
        "schedules that code no longer defines go on: digest; delete them, or define them again"
    )


async def _nothing() -> None: ...


async def test_older_code_does_not_undo_newer(storage_url: str) -> None:
    def code(version: int) -> App:
        app = App(storage_url, defaults=PATIENT)
        task = app.task(name="digest", version=version)(_nothing)
        app.schedule(FAR, priority=version)(task)
        return app

    for version in (2, 1):
        async with code(version) as app:
            stored = await app.schedules.get("digest")
        assert stored.definition.priority == 2


async def test_two_apps_may_open_at_once(storage_url: str) -> None:
    def code() -> App:
        app = with_tasks(App(storage_url, defaults=PATIENT))
        for n in range(5):
            app.schedule(FAR, name=f"s{n}")(app.tasks["digest"])
        return app

    async def open_and_close() -> None:
        async with code():
            pass

    await asyncio.gather(*(open_and_close() for _ in range(4)))
    async with code() as app:
        assert [it.version for it in await app.schedules.list()] == [1] * 5


def test_a_schedule_belongs_above_a_task_of_this_app() -> None:
    app, other = App("sqlite:///:memory:"), App("sqlite:///:memory:")
    task = app.task(name="digest")(_nothing)

    with pytest.raises(InvalidTask, match=r"put @app\.schedule above @app\.task"):
        app.schedule(FAR)(_nothing)  # type: ignore[type-var]  # that is the point
    with pytest.raises(InvalidTask, match="no task of this app"):
        other.schedule(FAR)(task)
    assert app.schedule(FAR)(task) is task
    with pytest.raises(InvalidInput, match="give each its own"):
        app.schedule(FAR)(task)


NAMES = ("a", "b", "c")


async def _schedule(app: App) -> None:
    for _ in range(10):
        await app.scheduler().run_once()


async def _operate(app: App) -> None:
    for n in range(10):
        for name in NAMES[:: -1 if n % 2 else 1]:
            await app.schedules.update(name, max_concurrency=1 + n % 3)
            await app.schedules.trigger(name, "more")


async def _work(app: App) -> None:
    for _ in range(30):
        for run in (await claim(app.storage, 5, tasks=("digest",))).runs:
            await app.storage.commit([success(run)])


async def test_schedulers_operators_and_workers_meet_without_a_deadlock(storage_url: str) -> None:
    """All at once on the same few schedules: every lock there is, in every order they come."""
    async with with_tasks(App(storage_url, defaults=PATIENT)) as app:
        for name in NAMES:
            await app.schedules.create(name, every(1), "digest", overlap="replace")
            await rewound(app, name, timedelta(seconds=40))

        await asyncio.gather(*(do(app) for do in (_schedule, _operate, _work) for _ in range(3)))

        for name in NAMES:
            found = await app.schedules.get(name)
            runs = await runs_of(app.storage, found)
            times = [it.source.nominal_time for it in runs if it.source.nominal_time]
            assert check_occurrences(found, times, []) == []
    if storage_url.startswith("postgres"):
        assert deadlocks(storage_url) == 0
