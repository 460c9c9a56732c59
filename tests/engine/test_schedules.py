"""`app.schedules`: what operators do to schedules, on every adapter, in real time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fix_app import QUICK
from perdure import App, Retry, at, cron, every
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType
from perdure.core.schedule import DefinedBy, SkipReason, Verdict, rfc3339
from perdure.errors import (
    InvalidInput,
    InvalidPayload,
    ScheduleConflict,
    ScheduleExists,
    ScheduleNotFound,
    TaskNotFound,
)
from perdure.storage.contract.schedules import Stepped
from schedule_kit import rewound
from scheduling import MINUTE, SECOND
from storage_kit import request
from waiting import MAX_WAIT_S

FAR = datetime(2100, 1, 1, tzinfo=UTC)
YEARLY = at(FAR)


@pytest.fixture
def app(storage_url: str) -> App:
    app = App(storage_url, defaults=QUICK)

    @app.task(queue="mail", retry=Retry(max_attempts=7))
    async def digest(size: int = 1) -> int:
        return size

    return app


# Creating


async def test_a_created_schedule_is_found_again(app: App) -> None:
    async with app:
        made = await app.schedules.create(
            "nightly",
            cron("0 3 * * *", tz="Europe/Berlin"),
            "digest",
            by="grace",
            payload={"size": 3},
            overlap="queue_latest",
            misfire="catch_up",
            catch_up_age=3600,
            queue="slow",
            timeout=30,
            tags={"team": "red"},
        )

        assert await app.schedules.get("nightly") == made
        assert [it.id for it in await app.schedules.list()] == ["nightly"]
        assert made.definition.policy is not None
        assert made.definition.policy.max_attempts == 7
        assert made.definition.policy.timeout == timedelta(seconds=30)
        assert made.defined_by is DefinedBy.OPERATOR


async def test_a_second_of_its_name_is_refused(app: App) -> None:
    async with app:
        await app.schedules.create("nightly", YEARLY, "digest")

        with pytest.raises(ScheduleExists, match="'nightly' already"):
            await app.schedules.create("nightly", every(60), "digest")


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"payload": {"siz": 3}}, InvalidPayload, "size"),
        ({"payload": 3}, InvalidInput, "payload: must be a dict"),
        ({"overlap": "forbit"}, InvalidInput, "did you mean forbid"),
        ({"misfire": "never"}, InvalidInput, "misfire: must be one of"),
        ({"misfire_grace": 0}, InvalidInput, "misfire_grace"),
        ({"max_concurrency": 0}, InvalidInput, "max_concurrency"),
        ({"priority": 11}, InvalidInput, "priority"),
        ({"queue": ""}, InvalidInput, "queue"),
        ({"retry": 5}, InvalidInput, "retry: must be a Retry"),
        ({"enabled": 1}, InvalidInput, "enabled"),
        ({"cadense": 1}, InvalidInput, "is no setting of a schedule"),
    ],
)
async def test_bad_settings_are_refused_before_anything_is_stored(
    app: App, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    async with app:
        with pytest.raises(error, match=said):
            await app.schedules.create("bad", YEARLY, "digest", **settings)

        assert await app.schedules.list() == []


async def test_the_names_of_schedule_and_task_and_the_cadence_are_checked(app: App) -> None:
    async with app:
        with pytest.raises(TaskNotFound):
            await app.schedules.create("nightly", YEARLY, "digets")
        with pytest.raises(InvalidInput, match="must not hold a colon"):
            await app.schedules.create("a:b", YEARLY, "digest")
        with pytest.raises(InvalidInput, match=r"e\.g\. cron\('0 9 \* \* \*'\)"):
            await app.schedules.create("x", "0 9 * * *", "digest")  # type: ignore[arg-type]
        with pytest.raises(ScheduleNotFound, match="'nightly'"):
            await app.schedules.get("nightly")


async def test_an_app_without_the_code_schedules_what_the_catalogue_knows(app: App) -> None:
    async with app:
        pass
    async with App(app.url, defaults=QUICK) as other:
        made = await other.schedules.create("x", YEARLY, "digest", payload={"size": 2})

        with pytest.raises(InvalidPayload, match="no such argument"):
            await other.schedules.create("y", YEARLY, "digest", payload={"sizes": 2})
        run = await (await other.schedules.trigger("x", "to see")).get()
    assert bytes(made.definition.payload_json) == b'{"size":2}'
    assert (run.queue, run.policy.max_attempts) == ("mail", 7)


# Changing


async def test_an_update_changes_what_is_given_and_a_replacement_says_it_all(app: App) -> None:
    async with app:
        await app.schedules.create("x", YEARLY, "digest", payload={"size": 3}, queue="slow")

        updated = await app.schedules.update("x", by="ann", cadence=every(60), priority=4)
        replaced = await app.schedules.replace("x", YEARLY, "digest", by="bob", reason="tidy up")

    assert (updated.definition.queue, updated.definition.priority) == ("slow", 4)
    assert bytes(updated.definition.payload_json) == b'{"size":3}'
    assert updated.cadence == every(60)
    assert updated.touched is not None
    assert (updated.version, updated.touched.by.id) == (2, "ann")
    assert (replaced.definition.queue, replaced.definition.priority) == (None, None)
    assert bytes(replaced.definition.payload_json) == b"{}"
    assert replaced.touched is not None
    assert replaced.touched.reason == "tidy up"


async def test_another_task_must_take_the_payload_that_is_kept(app: App) -> None:
    @app.task
    async def sweep() -> None: ...

    async with app:
        await app.schedules.create("x", YEARLY, "digest", payload={"size": 3})

        with pytest.raises(InvalidPayload, match="sweep, argument size: there is no such argument"):
            await app.schedules.update("x", task=sweep)
        moved = await app.schedules.update("x", task=sweep, payload=None)

    assert (moved.definition.task, bytes(moved.definition.payload_json)) == ("sweep", b"{}")


async def test_an_edit_and_a_pause_leave_a_running_occurrence_alone(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", payload={"size": 3})
        await rewound(app, "x", 60 * SECOND)
        await app.scheduler().run_once()
        [before, *_] = (await app.runs.list()).runs
        executing = app.executing(before.id)

        await app.schedules.update("x", payload={"size": 9}, max_concurrency=3, overlap="allow")
        await app.schedules.pause("x")
        await app.schedules.delete("x")
        async with executing:
            result = await app.runs.handle(before).result(MAX_WAIT_S)
        after = await app.runs.get(before)

    assert result == 3
    assert (after.payload_json, after.queue, after.policy) == (
        before.payload_json,
        before.queue,
        before.policy,
    )


async def test_a_paused_schedule_makes_nothing_until_it_is_resumed(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest")
        await rewound(app, "x", 130 * SECOND)
        paused = await app.schedules.pause("x", "too loud", by="ann")
        again = await app.schedules.pause("x", by="bob")
        other = await app.schedules.pause("x", "too dear", by="bob")
        await app.scheduler().run_once()
        runs_while_paused = (await app.runs.list()).runs
        resumed = await app.schedules.resume("x")
        await app.scheduler().run_once()
        runs = (await app.runs.list()).runs

    assert paused.paused is not None
    assert paused.paused.reason == "too loud"
    assert again.paused == paused.paused
    assert again.version == paused.version + 1
    assert other.paused is not None
    assert (other.paused.reason, other.pauses[0].reason) == ("too dear", "too loud")
    assert resumed.paused is None
    assert runs_while_paused == ()
    assert sum(run.status is not Status.SKIPPED for run in runs) >= 1


async def test_a_deleted_schedule_is_gone_but_its_history_is_not(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest")
        await rewound(app, "x", 60 * SECOND)
        await app.scheduler().run_once()
        [run, *_] = (await app.runs.list()).runs
        nominal = run.source.nominal_time
        assert nominal is not None

        await app.schedules.delete("x", "not needed", by="ann")

        assert await app.schedules.list() == []
        assert [it.id for it in await app.schedules.list(deleted=True)] == ["x"]
        with pytest.raises(ScheduleNotFound):
            await app.schedules.pause("x")
        assert (await app.schedules.why("x", nominal)).run == run
        held = await app.schedules.why("x", nominal + 60 * MINUTE)
        assert held.verdict is Verdict.HELD
        assert str(held).endswith("by ann (not needed).")


async def test_a_deleted_name_can_be_created_again_and_its_times_stay_decided(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest")
        before = await app.schedules.pause("x")
        await app.schedules.delete("x")

        made = await app.schedules.create("x", every(60), "digest", payload={"size": 2})

        assert made.deleted is None
        assert made.paused is None
        assert made.version > before.version
        assert made.cursor >= before.cursor
        assert await app.schedules.get("x") == made


async def test_an_edit_decides_what_was_due_by_the_old_definition_first(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", misfire="catch_up")
        await rewound(app, "x", 200 * SECOND)

        await app.schedules.update("x", cadence=YEARLY, payload={"size": 9})
        runs = (await app.runs.list()).runs

    assert 3 <= len(runs) <= 4
    assert {bytes(run.payload_json) for run in runs} == {b"{}"}


async def test_of_two_who_change_at_once_both_are_heard(app: App) -> None:
    @app.task
    async def sweep() -> None: ...

    async with app:
        await app.schedules.create("x", YEARLY, "digest")

        await asyncio.gather(
            *(app.schedules.update("x", priority=n) for n in range(5)),
            app.schedules.update("x", task=sweep),
            *(app.schedules.update("x", queue=f"q{n}") for n in range(5)),
        )
        after = await app.schedules.get("x")

    assert (after.version, after.definition.task) == (12, "sweep")
    assert after.definition.priority is not None
    assert after.definition.queue is not None


# By hand


async def test_a_trigger_needs_a_reason_that_stays_readable(app: App) -> None:
    async with app, app.worker():
        await app.schedules.create("x", YEARLY, "digest", payload={"size": 4})
        before = await app.schedules.get("x")

        with pytest.raises(InvalidInput, match="reason: say why"):
            await app.schedules.trigger("x", " ")
        handle = await app.schedules.trigger("x", "customer asked", by="ann")
        result = await handle.result(MAX_WAIT_S)
        run = await handle.get()

        assert result == 4
        assert run.source.reason == "customer asked"
        assert run.created_by == Actor(ActorType.OPERATOR, "ann")
        assert await app.schedules.get("x") == before


async def test_a_paused_schedule_can_be_triggered_by_hand(app: App) -> None:
    async with app:
        await app.schedules.create("x", YEARLY, "digest")
        await app.schedules.pause("x")

        run = await (await app.schedules.trigger("x", "now")).get()

    assert run.status is Status.QUEUED


async def test_a_preview_tells_the_next_times(app: App) -> None:
    morning = datetime(2026, 3, 28, 12, tzinfo=UTC)
    nine = cron("0 9 * * *", tz="Europe/Berlin")
    async with app:
        await app.schedules.create("x", nine, "digest")

        times = await app.schedules.preview("x", 3, after=morning)
        unborn = await app.schedules.preview(nine, 3, after=morning)

        with pytest.raises(InvalidInput, match="times: must be at most 1000"):
            await app.schedules.preview(nine, 1001)
    assert [rfc3339(time) for time in times] == [
        "2026-03-29T07:00:00Z",
        "2026-03-30T07:00:00Z",
        "2026-03-31T07:00:00Z",
    ]
    assert unborn == times


async def test_a_backfill_runs_what_was_not_run_and_twice_is_once(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", misfire="skip")
        await rewound(app, "x", timedelta(minutes=300))
        await app.scheduler().run_once()
        now = await app.storage.now()
        span = (await app.schedules.occurrences("x", now - timedelta(hours=6), now)).spans[0]
        within = (span.last - 2 * MINUTE, span.last + 2 * MINUTE)

        first = await app.schedules.backfill("x", *within, "the outage", by="ann")
        second = await app.schedules.backfill("x", *within, "the outage", by="ann")
        runs = [await handle.get() for handle in first.runs]

    assert [run.source.nominal_time for run in runs] == [
        span.last + n * MINUTE for n in (-2, -1, 0, 1, 2)
    ]
    assert {run.source.reason for run in runs} == {"the outage"}
    assert second.runs == ()
    assert second.rest_after is None


async def test_two_backfills_at_once_make_each_run_once(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", misfire="skip")
        await rewound(app, "x", timedelta(minutes=130))
        await app.scheduler().run_once()
        now = await app.storage.now()
        within = (now - timedelta(hours=2), now - timedelta(hours=1))

        answers = await asyncio.gather(
            *(app.schedules.backfill("x", *within, "both") for _ in range(3))
        )
        page = await app.runs.list(schedule_id="x", status="queued", limit=1000)

    ids = {handle.id for answer in answers for handle in answer.runs}
    inside = [
        run
        for run in page.runs
        if run.source.nominal_time and within[0] <= run.source.nominal_time <= within[1]
    ]
    assert len(ids) in (60, 61)
    assert {run.id for run in inside} == ids


async def test_times_before_the_schedule_was_made_can_be_backfilled(app: App) -> None:
    async with app:
        made = await app.schedules.create("x", every(60), "digest")
        start = made.created_at - 5 * MINUTE

        answer = await app.schedules.backfill("x", start, made.created_at, "from before")

        assert len(answer.runs) in (5, 6)
        with pytest.raises(InvalidInput, match="end: must not lie before start"):
            await app.schedules.backfill("x", made.created_at, start, "wrong way round")


async def test_a_long_backfill_goes_on_where_it_stopped(app: App) -> None:
    async with app:
        made = await app.schedules.create("x", every(1), "digest")
        start, end = made.created_at - timedelta(seconds=1500), made.created_at

        first = await app.schedules.backfill("x", start, end, "long")
        assert first.rest_after is not None
        rest = await app.schedules.backfill("x", first.rest_after, end, "long")

    assert len(first.runs) == 1000
    assert len(rest.runs) in (500, 501)
    assert rest.rest_after is None


# Why


async def test_why_did_it_not_run_at_nine(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", misfire="skip")
        await rewound(app, "x", timedelta(minutes=300))
        undecided = await app.schedules.why("x", await _nominal(app, "x", 250))
        await app.scheduler().run_once()

        in_a_span = await app.schedules.why("x", await _nominal(app, "x", 250))
        singly = await app.schedules.why("x", await _nominal(app, "x", 50))
        between = await app.schedules.why("x", await _nominal(app, "x", 50) + SECOND)
        to_come = await app.schedules.why("x", await _nominal(app, "x", -50))

    assert undecided.verdict is Verdict.UNDECIDED
    assert (in_a_span.verdict, in_a_span.reason) == (Verdict.SKIPPED, SkipReason.MISFIRED)
    assert in_a_span.span is not None
    assert "misfire policy was skip" in str(in_a_span)
    assert singly.run is not None
    assert "misfire policy was skip" in str(singly)
    assert singly.run.status is Status.SKIPPED
    assert between.verdict is Verdict.NOT_AN_OCCURRENCE
    assert to_come.verdict is Verdict.STILL_TO_COME


async def test_why_of_an_occurrence_that_waits_tells_what_for(app: App) -> None:
    async with app:
        await app.schedules.create("x", every(60), "digest", misfire="catch_up")
        await rewound(app, "x", timedelta(seconds=130))
        await app.scheduler().run_once()
        first, second, *_ = sorted((await app.runs.list()).runs, key=lambda run: str(run.run_at))
        await app.storage.claim(request(5, tasks=("digest",)))
        waiting = second.source.nominal_time
        assert waiting is not None

        answer = await app.schedules.why("x", waiting)
        of_run = await app.runs.why(second.id)

    assert answer.verdict is Verdict.HAS_RUN
    assert answer.why is not None
    assert answer.why.codes == of_run.codes
    assert f"Schedule x is full, with 1 of 1, held by {first.id}" in str(answer)


async def _nominal(app: App, name: str, minutes_ago: int) -> datetime:
    """The time of an each-minute schedule that lies so long ago."""
    now = await app.storage.now()
    return now.replace(second=0, microsecond=0) - minutes_ago * MINUTE


async def test_a_wrong_time_is_refused(app: App) -> None:
    async with app:
        await app.schedules.create("x", YEARLY, "digest")

        with pytest.raises(InvalidInput, match="at: must"):
            await app.schedules.why("x", datetime(2026, 1, 1))  # noqa: DTZ001  # that is the point


# Manifests


async def test_definitions_are_applied_and_a_dry_run_only_tells(app: App) -> None:
    async with app:
        await app.schedules.create("mine", YEARLY, "digest")
        wanted = [
            await app.schedules.define("a", YEARLY, "digest"),
            await app.schedules.define("mine", every(60), "digest"),
        ]

        told = await app.schedules.apply(wanted, dry_run=True)
        unchanged = await app.schedules.list()
        done = await app.schedules.apply(wanted, by="ann")
        again = await app.schedules.apply(wanted)
        fewer = await app.schedules.apply(wanted[:1])
        listed = await app.schedules.list()

    assert [it.id for it in unchanged] == ["mine"]
    for answer in (told, done):
        assert [it.definition.id for it in answer.added] == ["a"]
        assert [schedule.id for schedule, _ in answer.changed] == ["mine"]
    assert [it.id for it in again.unchanged] == ["a", "mine"]
    assert (again.added, again.changed) == ((), ())
    assert [it.id for it in fewer.orphaned] == ["mine"]
    assert {it.id: it.defined_by for it in listed} == {
        "a": DefinedBy.MANIFEST,
        "mine": DefinedBy.MANIFEST,
    }


async def test_a_change_whose_answer_was_lost_is_not_made_twice(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is stored, and taken for a conflict, as a retry after a lost answer is."""
    async with app:
        await app.schedules.create("x", YEARLY, "digest")
        put_schedules = app.storage.put_schedules
        tries: list[int] = []

        async def forgetful(steps: Any) -> Any:
            tries.append(1)
            [outcome] = await put_schedules(steps)
            assert isinstance(outcome, Stepped)
            return [ScheduleConflict("x", "as it seems")]

        monkeypatch.setattr(app.storage, "put_schedules", forgetful)
        paused = await app.schedules.pause("x")
        created = await app.schedules.create("y", YEARLY, "digest")

    assert len(tries) == 2
    assert (paused.version, created.version) == (2, 1)


async def test_the_sync_side_has_schedules_too(app: App) -> None:
    def use() -> list[str]:
        with app.sync as sync:
            sync.schedules.create("x", YEARLY, "digest")
            return [it.id for it in sync.schedules.list()]

    assert await asyncio.to_thread(use) == ["x"]
