"""Answers that never came: what was committed is found out, and nothing happens twice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from builders import OPERATOR
from perdure.core.decide import decide_cancel, decide_reschedule, decide_retry, decide_return
from perdure.core.run.commit import prepare_commit
from perdure.core.run.effects import DeadLetterStatus, close_dead_letter
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import OnExhausted, Policy
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.errors import StorageUnavailable
from perdure.storage import open_storage
from perdure.storage.contract.runs import Committed, Existing, RunFilter
from perdure.storage.contract.storage import Storage
from proxy import Cut, Proxy
from storage_kit import (
    CLOCK,
    check_all,
    claim_one,
    create,
    failure,
    history,
    letters,
    new_run,
    now,
    reload,
    request,
    step,
    stored,
    success,
    token_of,
)

pytestmark = pytest.mark.system

both_cuts = pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())


@pytest_asyncio.fixture
async def proxy(postgres_storage_url: str) -> AsyncIterator[Proxy]:
    async with Proxy.before(postgres_storage_url) as between:
        yield between


@pytest_asyncio.fixture
async def remote(proxy: Proxy) -> AsyncIterator[Storage]:
    """A storage that reaches its database through the proxy."""
    storage = open_storage(proxy.url, CLOCK)
    yield storage
    await storage.close()


@both_cuts
async def test_a_commit_without_an_answer_is_stored_once(
    cut: Cut, proxy: Proxy, remote: Storage
) -> None:
    run = await create(remote)
    commit = step(run, decide_reschedule(run, OPERATOR, now(), priority=3))
    proxy.cut = cut

    outcomes = await remote.commit([commit])

    assert (outcomes, proxy.cuts) == ([Committed(run.id, 2)], 1)
    assert await history(remote, run) == [*(await history(remote, run))[:1], *commit.events]
    await check_all(remote, [run.id])


@both_cuts
async def test_a_prepared_commit_without_an_answer_is_stored_once(
    cut: Cut, proxy: Proxy, remote: Storage
) -> None:
    for _ in range(5):  # from the fourth on, COMMIT is a prepared statement
        run = await create(remote)
    proxy.cut = cut

    outcomes = await remote.commit([step(run, decide_cancel(run, OPERATOR, now()))])

    assert (outcomes, proxy.cuts) == ([Committed(run.id, 2)], 1)
    await check_all(remote, [run.id])


@both_cuts
@pytest.mark.parametrize("key", [None, "order-1"], ids=["plain", "keyed"])
async def test_a_creation_without_an_answer_makes_one_run(
    cut: Cut, key: str | None, proxy: Proxy, remote: Storage
) -> None:
    batch = [new_run("first", idempotency_key=key), new_run("second", singleton_key=key)]
    proxy.cut = cut

    outcomes = await remote.commit(batch)

    assert outcomes == [Committed(commit.run.id, 1) for commit in batch]
    assert len((await remote.find(RunFilter(), limit=10)).runs) == 2
    assert [len(await history(remote, commit.run)) for commit in batch] == [1, 1]
    await check_all(remote, [commit.run.id for commit in batch])


@both_cuts
async def test_a_replay_without_an_answer_closes_its_dead_letter_once(
    cut: Cut, proxy: Proxy, remote: Storage
) -> None:
    await create(remote, policy=Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER))
    [dead] = await stored(remote, failure(await claim_one(remote)))
    replay = decide_retry(dead, make_run_id(now()), OPERATOR, now())
    plain = prepare_commit(None, replay, make_token())
    closed = close_dead_letter(dead, DeadLetterStatus.REPLAYED, OPERATOR, now(), plain.run.id)
    proxy.cut = cut

    outcomes = await remote.commit(
        [prepare_commit(None, replay, plain.commit_id, dead_letter_closed=closed)]
    )

    assert outcomes == [Committed(plain.run.id, 1)]
    [letter] = await letters(remote)
    assert (letter.status, letter.replay_run_id) == (DeadLetterStatus.REPLAYED, plain.run.id)
    await check_all(remote, [dead.id, plain.run.id])


async def test_a_creation_repeated_late_takes_no_key_from_anyone(storage: Storage) -> None:
    first = new_run(idempotency_key="order", singleton_key="only")
    await stored(storage, first)
    await stored(storage, success(await claim_one(storage)))
    await create(storage, singleton_key="only")

    again = await storage.commit([first])

    assert again == [Committed(first.run.id, 1)]
    [outcome] = await storage.commit([new_run(idempotency_key="order")])
    assert isinstance(outcome, Existing)
    assert outcome.run_id == first.run.id


async def test_a_claim_without_an_answer_is_found_among_the_leases_and_given_back(
    proxy: Proxy, remote: Storage
) -> None:
    runs = [await create(remote) for _ in range(3)]
    asked = request(3, worker_id="lost", start=0)
    proxy.cut = Cut.AFTER_COMMIT

    with pytest.raises(StorageUnavailable):
        await remote.claim(asked)

    held = await remote.leases("lost")
    assert {token_of(run) for run in held} == set(asked.tokens)
    assert sorted(run.id for run in held) == sorted(run.id for run in runs)
    returned = await stored(
        remote, *(step(run, decide_return(run, token_of(run), now())) for run in held)
    )
    assert {run.status for run in returned} == {Status.QUEUED}
    assert {(run.counters.attempts, run.counters.returns) for run in returned} == {(0, 1)}
    assert len((await remote.claim(request(5))).runs) == 3
    await check_all(remote, [run.id for run in runs])


async def test_a_claim_cut_before_its_commit_has_claimed_nothing(
    proxy: Proxy, remote: Storage
) -> None:
    await create(remote)
    proxy.cut = Cut.BEFORE_COMMIT

    with pytest.raises(StorageUnavailable):
        await remote.claim(request(1, worker_id="lost"))

    assert await remote.leases("lost") == []
    assert len((await remote.claim(request(1))).runs) == 1


@both_cuts
async def test_outcomes_that_rode_with_a_lost_claim_are_settled_by_committing_them_again(
    cut: Cut, proxy: Proxy, remote: Storage
) -> None:
    finished, waiting = await create(remote), await create(remote)
    run = await claim_one(remote)
    outcome = success(run, "done")
    proxy.cut = cut

    with pytest.raises(StorageUnavailable):
        await remote.claim(request(1, worker_id="lost"), [outcome])

    assert await remote.commit([outcome]) == [Committed(finished.id, outcome.run.sequence)]
    assert await remote.commit([outcome]) == [Committed(finished.id, outcome.run.sequence)]
    held = [run.id for run in await remote.leases("lost")]
    assert held == ([waiting.id] if cut is Cut.AFTER_COMMIT else [])
    assert (await reload(remote, finished)).result == "done"
    assert len(await history(remote, finished)) == outcome.run.sequence
    await check_all(remote, [finished.id, waiting.id])


TRANSIENT = (
    "40001",
    "40P01",
    "55P03",
    "57014",
    "25P03",
    "53300",
    "57P01",
    "57P02",
    "57P03",
    "08006",
)


@pytest.mark.parametrize("code", TRANSIENT)
async def test_what_the_database_calls_transient_is_tried_again(
    code: str, proxy: Proxy, remote: Storage
) -> None:
    run = await create(remote)
    proxy.error = code

    outcomes = await remote.commit([step(run, decide_cancel(run, OPERATOR, now()))])

    assert (outcomes, proxy.cuts) == ([Committed(run.id, 2)], 1)
    proxy.error = code
    assert (await remote.claim(request(1))).runs == ()
    assert proxy.cuts == 2
    await check_all(remote, [run.id])


@pytest.mark.parametrize("before", range(6))
async def test_what_is_stored_may_be_committed_again_whenever_statements_are_prepared(
    before: int, storage: Storage
) -> None:
    again = [new_run(n) for n in range(3)]
    for n in range(before):
        await stored(storage, new_run(n))

    for n in range(3):
        await stored(storage, *again)
        await stored(storage, new_run(n))

    assert len((await storage.find(RunFilter(), limit=100)).runs) == before + 3 + 3
