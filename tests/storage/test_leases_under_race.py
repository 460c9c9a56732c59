"""Renewals, recoveries and operators who meet: the lease decides, as it is stored, when the lock
is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from blocker import Blocker
from builders import OPERATOR
from perdure.core.decide import (
    decide_cancel,
    decide_failure,
    decide_recovery,
    decide_release,
    decide_start,
    decide_success,
)
from perdure.core.limits.admission import LimitScope
from perdure.core.run.commit import Commit
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Lease, Run
from perdure.errors import LeaseLost, SequenceConflict
from perdure.storage import open_storage
from perdure.storage.contract.runs import Committed, Renewal
from perdure.storage.contract.storage import Storage
from storage_kit import (
    CLOCK,
    check_all,
    claim,
    claim_one,
    create,
    history,
    new_run,
    now,
    reload,
    request,
    set_limit,
    step,
    stored,
    success,
    token_of,
    wait_until,
)

SHORT = timedelta(milliseconds=100)
ENOUGH_TO_BLOCK = timedelta(seconds=1)
"""On a busy machine a connection and a lock take their time."""
LONG = timedelta(hours=1)


def lease_of(run: Run) -> Lease:
    assert run.lease is not None
    return run.lease


async def expired(storage: Storage, **fields: object) -> Run:
    """A claimed run whose worker has not been heard of for too long."""
    await create(storage)
    run = await claim_one(storage, lease_ttl=SHORT, **fields)
    await wait_until(storage, lease_of(run).expires_at)
    return run


async def recovery(storage: Storage) -> Commit:
    """What maintenance has read and decided, and will now commit."""
    [run] = await storage.attention(10)
    return step(run, decide_recovery(run, await storage.now()))


async def renew(storage: Storage, run: Run) -> None:
    answer = await storage.renew([Renewal(run.id, token_of(run), LONG)])
    assert set(answer.renewed) == {run.id}


async def test_a_recovery_loses_to_a_renewal_made_since_its_read(storage: Storage) -> None:
    run = await expired(storage)
    late = await recovery(storage)
    await renew(storage, run)
    before = await reload(storage, run)

    [outcome] = await storage.commit([late])

    assert isinstance(outcome, SequenceConflict)
    assert await reload(storage, run) == before
    assert len(await history(storage, run)) == run.sequence
    assert await storage.attention(10) == []
    await check_all(storage, [run.id])


async def test_the_winner_of_that_race_finishes_its_attempt(storage: Storage) -> None:
    run = await expired(storage)
    late = await recovery(storage)
    await renew(storage, run)
    await storage.commit([late])

    assert await storage.commit([success(run)]) == [Committed(run.id, 4)]
    await check_all(storage, [run.id])


async def test_a_recovery_loses_alone(storage: Storage) -> None:
    """The other leases of its batch had really expired."""
    await stored(storage, *(new_run() for _ in range(5)))
    runs = (await claim(storage, 5, lease_ttl=SHORT)).runs
    await wait_until(storage, lease_of(runs[0]).expires_at)
    moment = await storage.now()
    batch = [step(run, decide_recovery(run, moment)) for run in await storage.attention(10)]
    await renew(storage, runs[2])

    outcomes = await storage.commit(batch)

    lost = [outcome for outcome in outcomes if isinstance(outcome, SequenceConflict)]
    assert [conflict.run_id for conflict in lost] == [runs[2].id]
    assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 4
    await check_all(storage, [run.id for run in runs])


@pytest.mark.parametrize("start", [0, 1], ids=["claimed", "running"])
async def test_a_recovery_that_is_due_wins(start: int, storage: Storage) -> None:
    run = await expired(storage, start=start)

    outcomes = await storage.commit([await recovery(storage)])

    assert outcomes == [Committed(run.id, run.sequence + 1)]
    found = await reload(storage, run)
    assert (found.status, found.lease) == (Status.QUEUED, None)
    assert found.deaths == start
    await check_all(storage, [run.id])


async def test_a_renewal_survives_an_operator_who_had_read_before_it(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=SHORT)
    asked = step(run, decide_cancel(run, OPERATOR, now(), "enough"))
    await renew(storage, run)
    renewed = lease_of(await reload(storage, run)).expires_at

    outcomes = await storage.commit([asked])

    assert outcomes == [Committed(run.id, 4)]
    found = await reload(storage, run)
    assert (found.status, lease_of(found).expires_at) == (
        Status.CANCELLATION_REQUESTED,
        renewed,
    )
    assert renewed > lease_of(asked.run).expires_at
    await wait_until(storage, lease_of(run).expires_at)
    assert await storage.attention(10) == []
    await check_all(storage, [run.id])


async def test_an_attempt_renewed_under_a_cancellation_replays_to_its_end(
    storage: Storage,
) -> None:
    await create(storage)
    run = await claim_one(storage, start=0, lease_ttl=SHORT)
    asked = step(run, decide_cancel(run, OPERATOR, now()))
    await renew(storage, run)
    await stored(storage, asked)
    await wait_until(storage, lease_of(run).expires_at)
    found = await reload(storage, run)

    [ended] = await stored(storage, step(found, decide_start(found, token_of(run), now())))

    assert ended.status is Status.CANCELLED
    assert [event.type for event in await history(storage, run)][-2:] == [
        EventType.CANCELLATION_REQUESTED,
        EventType.CANCELLED,
    ]
    await check_all(storage, [run.id])


async def test_a_worker_that_slept_through_its_recovery_has_lost_the_lease(
    storage: Storage,
) -> None:
    run = await expired(storage)
    [recovered] = await stored(storage, await recovery(storage))
    token = token_of(run)

    [outcome] = await storage.commit([success(run)])

    assert isinstance(outcome, SequenceConflict)
    found = await reload(storage, run)
    assert found == recovered
    error = make_failure(FailureKind.ERROR, type="ValueError", message="boom")
    with pytest.raises(LeaseLost):
        decide_success(found, token, now())
    with pytest.raises(LeaseLost):
        decide_failure(found, token, now(), error)
    with pytest.raises(LeaseLost):
        decide_release(found, token, now())
    assert (await storage.renew([Renewal(run.id, token, LONG)])).lost == {run.id}


async def test_a_worker_that_slept_through_another_ones_claim_changes_nothing(
    storage: Storage,
) -> None:
    sleeper = await expired(storage, start=0)
    await stored(storage, await recovery(storage))
    owner = await claim_one(storage, worker_id="worker-2")

    [outcome] = await storage.commit(
        [step(sleeper, decide_start(sleeper, token_of(sleeper), lease_of(sleeper).claimed_at))]
    )

    assert isinstance(outcome, SequenceConflict)
    assert await reload(storage, owner) == owner
    assert lease_of(owner).fence > lease_of(sleeper).fence
    assert await storage.commit([success(owner)]) == [Committed(owner.id, owner.sequence + 1)]
    await check_all(storage, [owner.id])


@pytest_asyncio.fixture
async def postgres(postgres_storage_url: str) -> AsyncIterator[Storage]:
    storage = open_storage(postgres_storage_url, CLOCK)
    yield storage
    await storage.close()


async def test_a_renewal_of_a_row_being_written_is_unknown_not_lost(
    postgres: Storage, postgres_storage_url: str
) -> None:
    await stored(postgres, new_run(), new_run())
    locked, free = (await claim(postgres, 2)).runs
    async with Blocker.of(postgres_storage_url, locked.id):
        answer = await postgres.renew(
            [Renewal(run.id, token_of(run), LONG) for run in (locked, free)]
        )

    assert (set(answer.unknown), set(answer.renewed)) == ({locked.id}, {free.id})
    assert (answer.lost, answer.cancelling) == (frozenset(), frozenset())
    await renew(postgres, locked)


async def test_a_claim_does_not_wait_for_a_row_being_written(
    postgres: Storage, postgres_storage_url: str
) -> None:
    locked, free = await stored(postgres, new_run(), new_run())
    async with Blocker.of(postgres_storage_url, locked.id):
        assert [run.id for run in (await postgres.claim(request(2))).runs] == [free.id]

    assert [run.id for run in (await postgres.claim(request(2))).runs] == [locked.id]


async def test_attention_does_not_wait_for_a_row_being_written(
    postgres: Storage, postgres_storage_url: str
) -> None:
    run = await expired(postgres)
    await renew(postgres, run)
    async with Blocker.of(postgres_storage_url, run.id):
        assert await postgres.attention(10) == []


async def test_a_lease_that_expires_while_its_recovery_waits_for_the_lock_has_expired(
    postgres: Storage, postgres_storage_url: str
) -> None:
    """Time is read once the row is ours: when the transaction began the lease was alive."""
    await create(postgres)
    run = await claim_one(postgres, lease_ttl=ENOUGH_TO_BLOCK)
    recovered = step(run, decide_recovery(run, lease_of(run).expires_at))
    async with Blocker.of(postgres_storage_url, run.id) as blocker:
        commit = asyncio.create_task(postgres.commit([recovered]))
        await blocker.victim()
        assert await postgres.now() < lease_of(run).expires_at
        await wait_until(postgres, lease_of(run).expires_at)
        await blocker.release()

        assert await commit == [Committed(run.id, run.sequence + 1)]
    await check_all(postgres, [run.id])


async def test_a_recovery_that_waited_for_a_renewal_loses_to_it(
    postgres: Storage, postgres_storage_url: str
) -> None:
    run = await expired(postgres)
    late = await recovery(postgres)
    async with Blocker.of(postgres_storage_url, run.id) as blocker:
        commit = asyncio.create_task(postgres.commit([late]))
        await blocker.victim()
        await blocker.execute(
            "UPDATE perdure_runs SET lease_expires_at = lease_expires_at + interval '1 hour'"
            " WHERE id = %s",
            run.id[4:],
        )
        await blocker.release()

        [outcome] = await commit
    assert isinstance(outcome, SequenceConflict)
    found = await reload(postgres, run)
    assert (found.sequence, token_of(found)) == (run.sequence, token_of(run))
    await check_all(postgres, [run.id])


async def test_a_claim_that_waited_for_a_limit_leases_from_when_it_got_it(
    postgres: Storage, postgres_storage_url: str
) -> None:
    """Otherwise a worker would begin with a lease that is partly, or wholly, used up."""
    await set_limit(postgres, LimitScope.QUEUE, "default", 1)
    await create(postgres)
    async with Blocker.of(postgres_storage_url) as blocker:
        await blocker.execute("SELECT FROM perdure_limits FOR UPDATE")
        waiting = asyncio.create_task(postgres.claim(request(1, lease_ttl=SHORT)))
        await blocker.victim()
        await wait_until(postgres, await postgres.now() + 2 * SHORT)
        released_at = await postgres.now()
        await blocker.release()

        [run] = (await waiting).runs
    assert lease_of(run).claimed_at >= released_at
    await check_all(postgres, [run.id])
