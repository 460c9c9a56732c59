"""What pruning takes of schedules: the keys of times that cannot come again. On every adapter."""

from __future__ import annotations

import asyncio

import raw
from builders import OPERATOR
from perdure.core.decide import NewRun, decide_create
from perdure.core.run.commit import prepare_commit
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.schedule import Schedule, backfilled
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.storage.contract.storage import Storage
from schedule_kit import due_step, put, reread, runs_of, scheduled
from scheduling import EACH_MINUTE, HOUR, MINUTE, NINE
from storage_kit import check_all, claim, now, stored, success

TEN = NINE + HOUR
LATER = 400 * 24 * HOUR


async def ended(storage: Storage, schedule: Schedule, count: int = 1) -> Schedule:
    """The schedule after so many of its occurrences were made and have succeeded."""
    for _ in range(count):
        assert schedule.next_at is not None
        await put(storage, due_step(schedule, schedule.next_at))
        schedule = await reread(storage, schedule)
    await end_all(storage)
    return schedule


async def end_all(storage: Storage) -> None:
    """One by one where a schedule has but one slot."""
    while runs := (await claim(storage, 1000)).runs:
        await stored(storage, *(success(run) for run in runs))


def owners(url: str) -> set[str]:
    """The names of all keys."""
    [found] = raw.execute(url, "SELECT name FROM perdure_keys")
    return {name for (name,) in found}


async def prune(storage: Storage) -> int:
    return await storage.prune(Status.SUCCEEDED, now() + LATER, 1000)


async def backfill(storage: Storage, schedule: Schedule, *, hours: int) -> Run:
    run_id, task = make_run_id(NINE), NewRun(task=schedule.definition.task)
    wish = backfilled(schedule, task, run_id, NINE + hours * HOUR, "asked", recorded=False)
    made = prepare_commit(None, decide_create(wish, run_id, OPERATOR, now()), make_token())
    [run] = await stored(storage, made)
    return run


async def test_the_keys_of_pruned_occurrences_go_and_how_far_is_known(
    storage: Storage, storage_url: str
) -> None:
    digest, other = await scheduled(storage), await scheduled(storage, id="other")
    before = await backfill(storage, digest, hours=-1)
    await ended(storage, other)
    digest = await ended(storage, digest, count=2)
    assert digest.forgotten_until is None
    await put(storage, due_step(digest, TEN + 2 * HOUR))

    assert await prune(storage) == 4

    assert (await reread(storage, digest)).forgotten_until == TEN + HOUR
    assert (await reread(storage, other)).forgotten_until == TEN
    [left] = await runs_of(storage, digest)
    assert owners(storage_url) == {before.occurrence_key, left.occurrence_key}
    await check_all(storage, [left.id])


async def test_what_was_pruned_later_but_lies_earlier_takes_nothing_back(storage: Storage) -> None:
    digest = await ended(storage, await scheduled(storage), count=2)
    await prune(storage)
    await backfill(storage, digest, hours=-5)
    await end_all(storage)

    assert await prune(storage) == 1

    assert (await reread(storage, digest)).forgotten_until == TEN + HOUR


async def test_who_prunes_and_who_decides_do_not_wait_for_each_other_in_a_circle(
    storage: Storage,
) -> None:
    names = ["a", "b", "c", "d"]
    schedules = [await scheduled(storage, id=name, cadence=EACH_MINUTE) for name in names]
    schedules = [await ended(storage, it, count=10) for it in schedules]
    steps = [due_step(it, it.cursor + MINUTE) for it in schedules]

    await asyncio.gather(
        *(storage.prune(Status.SUCCEEDED, now() + LATER, 7) for _ in range(8)),
        *(put(storage, step) for step in reversed(steps)),
    )

    assert await prune(storage) == 0
    for schedule in schedules:
        moved = await reread(storage, schedule)
        assert (moved.cursor, moved.forgotten_until) == (schedule.cursor + MINUTE, schedule.cursor)
