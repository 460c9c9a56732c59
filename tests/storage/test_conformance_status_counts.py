"""Expired leases, open dead letters and schedules are counted for status and metrics."""

from __future__ import annotations

from datetime import timedelta

from builders import OPERATOR
from perdure.core.run.effects import DeadLetterStatus, close_dead_letter
from perdure.core.run.run import OnExhausted, Policy
from perdure.storage.contract.inspection import NextSchedule, StatusCounts
from perdure.storage.contract.storage import Storage
from schedule_kit import scheduled
from storage_kit import claim_one, create, failure, now, stored, wait_until

SHORT = timedelta(milliseconds=50)
LETTERED = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)


async def counts(storage: Storage) -> StatusCounts:
    return await storage.status_counts("default")


async def test_an_empty_environment_has_nothing_to_report(storage: Storage) -> None:
    await create(storage, environment="staging")

    seen = await counts(storage)

    assert seen == StatusCounts(now=seen.now)


async def test_only_leases_that_have_expired_are_counted(storage: Storage) -> None:
    await create(storage)
    await create(storage)
    await claim_one(storage)
    run = await claim_one(storage, lease_ttl=SHORT)
    assert run.lease is not None
    await wait_until(storage, run.lease.expires_at)

    assert (await counts(storage)).expired_leases == 1


async def test_open_dead_letters_are_counted_by_queue_and_closed_ones_are_not(
    storage: Storage,
) -> None:
    for queue in ("mail", "mail", "files"):
        await create(storage, queue=queue, policy=LETTERED)
        [dead] = await stored(storage, failure(await claim_one(storage)))
    assert (await counts(storage)).dead_letters == {"mail": 2, "files": 1}

    closed = close_dead_letter(dead, DeadLetterStatus.DISCARDED, OPERATOR, now())
    await storage.close_dead_letters([closed])

    assert (await counts(storage)).dead_letters == {"mail": 2}


async def test_the_schedule_whose_time_comes_first_is_named_also_when_it_is_late(
    storage: Storage,
) -> None:
    later = await scheduled(storage, now() + timedelta(days=2), id="later")
    assert later.next_at is not None
    seen = await counts(storage)
    assert (seen.schedules, seen.due_schedules) == (1, 0)
    assert seen.next_schedule == NextSchedule("later", later.next_at)

    late = await scheduled(storage, now() - timedelta(days=2), id="late")
    assert late.next_at is not None
    seen = await counts(storage)
    assert (seen.schedules, seen.due_schedules) == (2, 1)
    assert seen.next_schedule == NextSchedule("late", late.next_at)
