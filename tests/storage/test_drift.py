"""Whatever lies beside a run and does not follow from it is found, on each database."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from builders import TASK
from perdure.core.decide import Claim, decide_claim, decide_release
from perdure.core.limits.admission import LimitScope
from perdure.core.run.commit import Commit
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.run import OnExhausted, Policy, Run, Source
from perdure.engine.runtime.ids import make_token
from perdure.storage.contract.storage import Storage
from perdure.storage.sql.read.drift import NO_BEGINNING, NO_RUN
from raw import execute
from storage_kit import (
    claim,
    claim_one,
    create,
    failure,
    new_run,
    now,
    reload,
    set_limit,
    step,
    stored,
    success,
    token_of,
)

ONCE = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)
TAMPERED = [
    "claimable_at = NULL",
    "attention_at = claimable_at",
    "task = 'another'",
    "queue = 'another'",
    "environment = 'another'",
    "priority = 7",
    "status = 'failed'",
    "sequence = 7",
    "gate = 'reserved'",
    "concurrency_key = 'another'",
    "holds_slot = {true}",
    "schedule_id = 'another'",
    "batch_id = 'another'",
    "parent_id = id",
    "failure_kind = 'error'",
    "fingerprint = 'another'",
    "nominal_at = claimable_at",
]


async def _rich(storage: Storage) -> Run:
    """A run that has something of everything."""
    at = now()
    return await create(
        storage,
        tags={"shop": "berlin"},
        batch_id="batch_1",
        singleton_key="one",
        idempotency_key="order-7",
        occurrence_key=f"nightly@{at.isoformat()}",
        source=Source(schedule_id="nightly", nominal_time=at),
    )


async def test_what_follows_from_runs_is_no_drift(storage: Storage) -> None:
    retried = Policy(max_attempts=5)
    created = [
        await create(storage, n, policy=policy, tags={"n": "1"}, batch_id="batch_1")
        for n, policy in enumerate([retried, retried, ONCE, retried])
    ]
    claimed = await claim(storage, 4)
    ended, failed, dead, waiting = sorted(claimed.runs, key=lambda run: bytes(run.payload_json))
    error = make_failure(FailureKind.ERROR, type="ValueError", message="boom")
    released = step(waiting, decide_release(waiting, token_of(waiting), now(), resume_at=now()))
    await stored(storage, success(ended), failure(failed, error), failure(dead, error), released)
    ids = [run.id for run in (*created, await _rich(storage), await claim_one(storage))]

    assert await storage.drift(ids) == {}


@pytest.mark.parametrize("environment", ["default", "test"])
@pytest.mark.parametrize("worker", ["worker-1", "worker-2"])
@pytest.mark.parametrize("minutes", [1, 2])
async def test_runs_that_begin_and_end_together_need_not_be_alike(
    storage: Storage, environment: str, worker: str, minutes: int
) -> None:
    one, other = await _rich(storage), await create(storage, environment=environment, policy=ONCE)

    # Beside a new one: otherwise the statement that can do it all is taken.
    at = now()
    starts = _begun(one, "worker-1", at, 1), _begun(other, worker, at, minutes)
    _, *running = await stored(storage, new_run(), *starts)
    assert [await reload(storage, run) for run in running] == running
    assert await storage.drift([one.id, other.id]) == {}
    _, *ended = await stored(storage, new_run(), success(running[0]), failure(running[1]))

    assert [await reload(storage, run) for run in ended] == ended
    assert await storage.drift([one.id, other.id]) == {}


def _begun(run: Run, worker: str, at: datetime, minutes: int) -> Commit:
    ttl = timedelta(minutes=minutes)
    offer = Claim(token=make_token(), worker_id=worker, lease_ttl=ttl, start=True)
    return step(run, decide_claim(run, offer, at))


async def test_a_run_that_waits_for_a_place_is_no_drift(storage: Storage) -> None:
    await set_limit(storage, LimitScope.TASK, TASK, 1)
    runs = [await create(storage) for _ in range(3)]
    await claim(storage)

    assert await storage.drift([run.id for run in runs]) == {}


@pytest.mark.parametrize("change", TAMPERED)
async def test_a_column_that_was_changed_by_hand_is_named(
    storage: Storage, storage_url: str, change: str
) -> None:
    run = await _rich(storage)
    is_sqlite = storage_url.startswith("sqlite")
    change = change.format(true=1 if is_sqlite else "TRUE")
    execute(storage_url, f"UPDATE perdure_runs SET {change}")

    told = await storage.drift([run.id])

    column = change.partition(" ")[0]
    assert f"its column {column} is " in "; ".join(told[run.id])


async def test_a_leases_token_is_compared_but_not_told(storage: Storage, storage_url: str) -> None:
    await create(storage)
    run = await claim_one(storage)
    execute(storage_url, "UPDATE perdure_runs SET lease_token = 'forged'")

    [[problem]] = (await storage.drift([run.id])).values()

    assert "lease_token" in problem
    assert token_of(run) not in problem
    assert "forged" not in problem


@pytest.mark.parametrize(
    ("table", "word"),
    [("keys", "singleton key 'one'"), ("run_tags", "tags"), ("batches", "batch")],
)
async def test_what_was_deleted_beside_a_run_is_missed(
    storage: Storage, storage_url: str, table: str, word: str
) -> None:
    run = await _rich(storage)
    execute(storage_url, f"DELETE FROM perdure_{table}")

    assert any(word in problem for problem in (await storage.drift([run.id]))[run.id])


async def test_a_dead_letter_that_was_deleted_is_missed(storage: Storage, storage_url: str) -> None:
    policy = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)
    await stored(storage, new_run(policy=policy))
    run = await claim_one(storage)
    await stored(storage, failure(run))
    execute(storage_url, "DELETE FROM perdure_dead_letters")

    assert await storage.drift([run.id]) == {run.id: ["it has no dead letter"]}


async def test_a_key_that_another_run_owns_is_told_of_the_run_that_should(
    storage: Storage, storage_url: str
) -> None:
    run, other = await _rich(storage), await create(storage)
    owner = other.id if storage_url.startswith("sqlite") else other.id[4:]
    execute(storage_url, f"UPDATE perdure_keys SET run_id = '{owner}'")

    told = await storage.drift([run.id, other.id])

    assert told == {
        run.id: [
            f"its singleton key 'one' is {other.id}'s",
            f"its occurrence key {run.occurrence_key!r} is {other.id}'s",
        ]
    }


async def test_nobody_is_astray_where_nothing_was_lost(storage: Storage) -> None:
    await _rich(storage)
    await stored(storage, success(await claim_one(storage)))

    assert await storage.strays("default", limit=10) == {}


async def test_a_history_without_its_run_is_a_stray(storage: Storage, storage_url: str) -> None:
    run, other = await create(storage), await create(storage, environment="another")
    execute(storage_url, "DELETE FROM perdure_runs")

    assert await storage.strays("default", limit=10) == {run.id: NO_RUN}
    assert await storage.strays("another", limit=10) == {other.id: NO_RUN}


async def test_a_history_that_nobody_can_read_is_everybodys_stray(
    storage: Storage, storage_url: str
) -> None:
    run = await create(storage)
    execute(storage_url, "DELETE FROM perdure_runs", "UPDATE perdure_history SET events = '{'")

    assert await storage.strays("another", limit=10) == {run.id: NO_RUN}


async def test_a_run_without_the_beginning_of_its_history_is_a_stray(
    storage: Storage, storage_url: str
) -> None:
    run = await create(storage)
    await claim_one(storage)
    execute(storage_url, "DELETE FROM perdure_history WHERE first_sequence = 1")

    assert await storage.strays("default", limit=10) == {run.id: NO_BEGINNING}
    assert await storage.strays("another", limit=10) == {}
