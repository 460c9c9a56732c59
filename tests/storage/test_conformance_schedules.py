"""Schedules: a step and its runs together or not at all, each time once. On every adapter."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

import raw
from builders import OPERATOR, TASK
from perdure.core.decide import NewRun, decide_cancel, decide_create
from perdure.core.limits.admission import LimitScope
from perdure.core.run.commit import prepare_commit
from perdure.core.run.lifecycle import Status
from perdure.core.schedule import (
    Change,
    DefinedBy,
    SkippedSpan,
    SkipReason,
    backfilled,
    changing,
    creating,
    cron,
    decide_pause,
    every,
    place_of,
)
from perdure.core.schedule.plan import SKIPS_KEPT_SINGLY
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.errors import (
    InvariantViolation,
    ScheduleConflict,
    SequenceConflict,
    UnreadableHistory,
)
from perdure.storage.contract.runs import Committed, Existing
from perdure.storage.contract.schedules import Stepped
from perdure.storage.contract.storage import Storage
from schedule_kit import due_step, making, plan_of, put, reread, runs_of, scheduled
from scheduling import EACH_MINUTE, EACH_SECOND, HOUR, MINUTE, NINE, SECOND, a_schedule
from storage_kit import check_all, claim, known_limit, now, step, stored, success

TEN = NINE + HOUR


async def test_a_schedule_comes_back_as_it_was_stored(storage: Storage) -> None:
    cadence = cron("0 9 * * MON-FRI", tz="Europe/Berlin", jitter=3)
    fields: dict[str, Any] = {"queue": "mail", "tags": {"a": "ß"}, "catch_up_age": HOUR}
    schedule = await scheduled(storage, cadence=cadence, misfire="catch_up", **fields)

    assert await reread(storage, schedule) == schedule
    assert await storage.list_schedules("default", limit=5) == [schedule]
    assert await storage.get_schedules("default", ["other"]) == {}
    assert await storage.get_schedules("elsewhere", [schedule.id]) == {}


async def test_its_slots_are_a_limit_that_claims_meet(storage: Storage) -> None:
    schedule = await scheduled(storage, overlap="allow", max_concurrency=3)

    limit = await known_limit(storage, LimitScope.SCHEDULE, "digest")
    assert limit is not None
    assert limit.max_leases == 3

    other = replace(schedule, definition=replace(schedule.definition, max_concurrency=5))
    change = Change(None, replace(other, version=2))
    await put(storage, changing(schedule, change, making(schedule), OPERATOR))

    limit = await known_limit(storage, LimitScope.SCHEDULE, "digest")
    assert limit is not None
    assert (limit.max_leases, limit.version) == (5, 2)
    assert limit.code.concurrency is not None
    assert limit.code.concurrency.by == OPERATOR


async def test_of_two_new_ones_of_a_name_the_first_is_stored(storage: Storage) -> None:
    first, second = a_schedule(), a_schedule(cadence=EACH_MINUTE)

    made, refused = await storage.put_schedules(
        [creating(first, OPERATOR), creating(second, OPERATOR)]
    )
    again = await storage.put_schedules([creating(second, OPERATOR)])

    assert isinstance(made, Stepped)
    assert isinstance(refused, ScheduleConflict)
    assert isinstance(again[0], ScheduleConflict)
    assert await reread(storage, first) == first


async def test_occurrences_are_stored_together_with_the_cursor(storage: Storage) -> None:
    schedule = await scheduled(storage, misfire="catch_up")
    step = due_step(schedule, TEN + 2 * HOUR)

    [outcome] = await storage.put_schedules([step])

    assert outcome == Stepped(tuple(Committed(c.run.id, c.run.sequence) for c in step.commits))
    assert (await reread(storage, schedule)).cursor == TEN + 2 * HOUR
    runs = await runs_of(storage, schedule)
    assert [run.source.nominal_time for run in runs] == [TEN, TEN + HOUR, TEN + 2 * HOUR]
    assert {run.schedule_id for run in runs} == {"digest"}
    await check_all(storage, [run.id for run in runs])


async def test_a_step_from_where_the_schedule_no_longer_is_leaves_no_trace(
    storage: Storage, storage_url: str
) -> None:
    schedule = await scheduled(storage)
    late = due_step(schedule, TEN)
    await put(storage, due_step(schedule, TEN))
    before = raw.dump(storage_url)

    [outcome] = await storage.put_schedules([late])

    assert isinstance(outcome, ScheduleConflict)
    assert raw.dump(storage_url) == before


async def test_an_edited_schedule_refuses_what_was_decided_before(storage: Storage) -> None:
    schedule = await scheduled(storage)
    late = due_step(schedule, TEN)
    paused = decide_pause(schedule, OPERATOR, TEN)
    assert paused is not None
    await put(storage, changing(schedule, Change(None, paused), making(schedule), OPERATOR))

    [outcome] = await storage.put_schedules([late])

    assert isinstance(outcome, ScheduleConflict)
    assert await runs_of(storage, schedule) == []
    assert await reread(storage, schedule) == paused


async def test_steps_share_a_transaction_and_not_a_fate(storage: Storage) -> None:
    fine = await scheduled(storage, id="fine")
    stale = await scheduled(storage, id="stale")
    late = due_step(stale, TEN)
    await put(storage, due_step(stale, TEN))

    outcomes = await storage.put_schedules([late, due_step(fine, TEN)])

    assert [type(outcome) for outcome in outcomes] == [ScheduleConflict, Stepped]
    assert len(await runs_of(storage, stale)) == 1
    assert len(await runs_of(storage, fine)) == 1


async def test_a_stale_run_spoils_the_whole_step_and_gives_its_keys_back(storage: Storage) -> None:
    schedule = await scheduled(storage, overlap="queue_latest")
    await put(storage, due_step(schedule, TEN))
    schedule, [waiting] = await reread(storage, schedule), await runs_of(storage, schedule)
    superseding = due_step(schedule, TEN + HOUR, [waiting])
    await stored(storage, step(waiting, decide_cancel(waiting, OPERATOR, now())))

    [outcome] = await storage.put_schedules([superseding])

    assert isinstance(outcome, ScheduleConflict)
    assert (await reread(storage, schedule)).cursor == TEN
    await put(storage, due_step(schedule, TEN + HOUR, []))
    runs = await runs_of(storage, schedule)
    assert [run.status for run in runs] == [Status.CANCELLED, Status.QUEUED]


async def test_a_newer_occurrence_supersedes_in_the_same_transaction(storage: Storage) -> None:
    schedule = await scheduled(storage, overlap="queue_latest")
    await put(storage, due_step(schedule, TEN))
    schedule, [waiting] = await reread(storage, schedule), await runs_of(storage, schedule)

    await put(storage, due_step(schedule, TEN + HOUR, [waiting]))

    older, newer = await runs_of(storage, schedule)
    assert (older.status, older.reason) == (Status.SKIPPED, SkipReason.SUPERSEDED)
    assert newer.status is Status.QUEUED


async def test_replacing_asks_the_active_one_to_stop(storage: Storage) -> None:
    schedule = await scheduled(storage, overlap="replace")
    await put(storage, due_step(schedule, TEN))
    [active] = (await claim(storage)).runs
    schedule = await reread(storage, schedule)

    await put(storage, due_step(schedule, TEN + HOUR, [active]))

    older, newer = await runs_of(storage, schedule)
    assert older.status is Status.CANCELLATION_REQUESTED
    assert newer.status is Status.QUEUED
    assert (await claim(storage)).runs == ()


async def test_an_occurrence_that_exists_is_not_made_again_and_holds_nothing_up(
    storage: Storage,
) -> None:
    schedule = await scheduled(storage, misfire="catch_up")
    reason = "the operator was faster"
    wish = backfilled(schedule, NewRun(task=TASK), "run", TEN, reason, recorded=False)
    events = decide_create(wish, make_run_id(NINE), OPERATOR, NINE)
    [existing] = await stored(storage, prepare_commit(None, events, make_token()))

    [outcome] = await storage.put_schedules([due_step(schedule, TEN + HOUR)])

    assert isinstance(outcome, Stepped)
    assert isinstance(outcome.outcomes[0], Existing)
    assert outcome.outcomes[0].run_id == existing.id
    runs = await runs_of(storage, schedule)
    assert [run.source.nominal_time for run in runs] == [TEN, TEN + HOUR]


async def test_a_time_in_a_span_cannot_be_made_an_occurrence_again(storage: Storage) -> None:
    schedule = await scheduled(storage, misfire="skip")
    await put(storage, due_step(schedule, NINE + 300 * HOUR))
    [span] = await storage.spans("default", "digest", NINE, NINE + 900 * HOUR, limit=9)
    schedule = await reread(storage, schedule)

    def attempt(nominal: datetime) -> Any:
        wish = backfilled(schedule, NewRun(task=TASK), "run", nominal, "try", recorded=False)
        events = decide_create(wish, make_run_id(NINE), OPERATOR, NINE)
        return storage.commit([prepare_commit(None, events, make_token())])

    for nominal in (span.first, span.first + HOUR, span.last):
        [refused] = await attempt(nominal)
        assert isinstance(refused, SequenceConflict), nominal
        assert "was recorded as skipped" in str(refused)
    [before] = await attempt(span.first - HOUR)
    assert isinstance(before, Committed)


@pytest.mark.parametrize("beyond", [NINE, TEN + HOUR], ids=["before", "after"])
async def test_a_step_that_decides_times_beyond_its_cursors_is_refused(
    storage: Storage, beyond: datetime
) -> None:
    schedule = await scheduled(storage)
    fine = due_step(schedule, TEN)
    span = SkippedSpan(
        schedule_id="digest",
        environment="default",
        first=min(beyond, TEN),
        last=max(beyond, TEN),
        count=1,
        reason=SkipReason.MISFIRED,
        recorded_at=TEN,
    )

    [outcome] = await storage.put_schedules([replace(fine, spans=(span,))])

    assert isinstance(outcome, InvariantViolation)
    assert await reread(storage, schedule) == schedule


async def test_a_cursor_never_goes_back(storage: Storage) -> None:
    schedule = await scheduled(storage)
    back = replace(schedule, cursor=NINE - HOUR, version=2)
    rewinding = changing(schedule, Change(None, back), making(schedule), OPERATOR)

    [outcome] = await storage.put_schedules([rewinding])

    assert isinstance(outcome, InvariantViolation)


async def test_due_schedules_come_longest_due_first_and_tell_when_to_look_again(
    storage: Storage,
) -> None:
    time = await storage.now()
    await scheduled(storage, time - 2 * MINUTE, id="older", cadence=EACH_MINUTE)
    await scheduled(storage, time - 30 * SECOND, id="newer", cadence=EACH_SECOND)
    future = await scheduled(storage, time, id="future", cadence=every(days=900))
    await scheduled(storage, time - HOUR, id="disabled", cadence=EACH_SECOND, enabled=False)

    due = await storage.due_schedules("default", limit=10)
    passed = await storage.due_schedules("default", limit=10, passing=["older"])
    one = await storage.due_schedules("default", limit=1)

    assert [schedule.id for schedule in due.schedules] == ["older", "newer"]
    assert due.next_at == future.next_at
    assert abs(due.now - await storage.now()) < timedelta(seconds=30)
    assert [schedule.id for schedule in passed.schedules] == ["newer"]
    assert [schedule.id for schedule in one.schedules] == ["older"]
    assert (await storage.due_schedules("elsewhere", limit=10)).schedules == ()


async def test_a_schedule_that_cannot_be_read_hides_no_other(
    storage: Storage, storage_url: str
) -> None:
    time = await storage.now()
    strange = await scheduled(storage, time - MINUTE, id="strange", cadence=EACH_SECOND)
    await scheduled(storage, time - MINUTE, id="plain", cadence=EACH_SECOND)
    newer = "UPDATE perdure_schedules SET body = '{\"v\": 99}' WHERE name = 'strange'"
    raw.execute(storage_url, newer)

    due = await storage.due_schedules("default", limit=10)

    assert [schedule.id for schedule in due.schedules] == ["plain"]
    assert due.unreadable == ("strange",)
    with pytest.raises(UnreadableHistory, match="schedule strange"):
        await reread(storage, strange)


async def test_pages_of_schedules_follow_each_other(storage: Storage) -> None:
    for name in ("c", "a", "b"):
        await scheduled(storage, id=name)
    stated = replace(a_schedule(id="d"), defined_by=DefinedBy.CODE)
    await put(storage, creating(stated, OPERATOR))

    first = await storage.list_schedules("default", limit=2)
    rest = await storage.list_schedules("default", limit=9, after="b")
    by_code = await storage.list_schedules("default", limit=9, defined_by=DefinedBy.CODE)

    assert [it.id for it in first] == ["a", "b"]
    assert [it.id for it in rest] == ["c", "d"]
    assert [it.id for it in by_code] == ["d"]


async def test_what_has_not_ended_is_known_by_schedule(storage: Storage) -> None:
    schedule = await scheduled(storage, overlap="allow", max_concurrency=9, misfire="catch_up")
    other = await scheduled(storage, id="other")
    await put(storage, due_step(schedule, NINE + 3 * HOUR), due_step(other, TEN))
    [first, *_] = await runs_of(storage, schedule)
    claimed = await claim(storage, 1, run_ids=(first.id,))
    await stored(storage, success(claimed.runs[0]))

    found = await storage.unended("default", ["digest", "other", "none"], limit=10)
    few = await storage.unended("default", ["digest"], limit=1)

    nominal = [run.source.nominal_time for run in found["digest"]]
    assert sorted(filter(None, nominal)) == [TEN + HOUR, TEN + 2 * HOUR]
    assert (len(found["other"]), found["none"], len(few["digest"])) == (1, [], 1)


async def test_the_calendar_of_a_range_is_read_in_order_of_time(storage: Storage) -> None:
    schedule = await scheduled(storage, misfire="catch_up")
    await put(storage, due_step(schedule, NINE + 5 * HOUR))

    async def times(first: datetime, last: datetime, limit: int = 9) -> list[datetime | None]:
        runs = await storage.occurrences("default", "digest", first, last, limit=limit)
        return [run.source.nominal_time for run in runs]

    assert await times(TEN, TEN + HOUR) == [TEN, TEN + HOUR]
    assert await times(TEN + SECOND, TEN + HOUR) == [TEN + HOUR]
    assert await times(NINE, NINE + 9 * HOUR, limit=2) == [TEN, TEN + HOUR]


async def test_spans_are_found_by_any_part_and_pruned_by_age(storage: Storage) -> None:
    schedule = await scheduled(storage, misfire="skip")
    end = NINE + 500 * HOUR
    await put(storage, due_step(schedule, end))
    plan = plan_of(schedule, end)
    [span] = plan.spans

    async def found(first: datetime, last: datetime) -> list[SkippedSpan]:
        return await storage.spans("default", "digest", first, last, limit=9)

    assert await found(NINE, end) == [span]
    assert await found(span.first, span.first) == [span]
    assert await found(span.last, span.last) == [span]
    assert await found(span.first - 2 * SECOND, span.first - SECOND) == []
    assert await found(span.last + SECOND, end) == []
    assert span.count + SKIPS_KEPT_SINGLY + 1 == 500
    assert await storage.prune_spans(span.recorded_at, 10) == 0
    assert await storage.prune_spans(span.recorded_at + SECOND, 10) == 1
    assert await found(NINE, end) == []


async def test_many_who_decide_the_same_make_each_occurrence_once(storage: Storage) -> None:
    schedule = await scheduled(storage, misfire="catch_up")
    steps = [due_step(schedule, NINE + 20 * HOUR) for _ in range(6)]

    answers = await asyncio.gather(*(storage.put_schedules([step]) for step in steps))

    kinds = sorted(type(outcome).__name__ for [outcome] in answers)
    assert kinds == ["ScheduleConflict"] * 5 + ["Stepped"]
    times = [run.source.nominal_time for run in await runs_of(storage, schedule)]
    assert times == [NINE + n * HOUR for n in range(1, 21)]


async def test_a_repeated_step_changes_nothing_and_takes_no_key_away(
    storage: Storage, storage_url: str
) -> None:
    """As when its first answer was lost: it is the same step, with the same ids."""
    schedule = await scheduled(storage)
    step = due_step(schedule, TEN)
    await put(storage, step)
    before = raw.dump(storage_url)

    [outcome] = await storage.put_schedules([step])

    assert isinstance(outcome, ScheduleConflict)
    assert raw.dump(storage_url) == before


async def test_instants_keep_their_microseconds(storage: Storage) -> None:
    odd = datetime(2026, 3, 2, 9, 0, 0, 123457, tzinfo=UTC)
    schedule = await scheduled(storage, odd, cadence=every(seconds=1.5, anchor=odd))

    due = place_of(await reread(storage, schedule))

    assert due.cursor == odd
