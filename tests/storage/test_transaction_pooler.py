"""Behind a pooler in transaction mode everything works, by polling or with `listen_url`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from perdure import App, Context
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import PerdureError
from perdure.storage import open_storage
from perdure.storage.contract.runs import Renewal
from perdure.storage.postgres.storage import PostgresStorage
from raw import execute
from storage_kit import check_all, claim, claim_one, create, new_run, reload, success, token_of
from transaction_pooler import TransactionPooler
from waiting import MAX_WAIT_S

PATIENT = Defaults(poll=timedelta(seconds=60))
QUICK = Defaults(poll=timedelta(milliseconds=100), concurrency=10)
A_MINUTE = timedelta(minutes=1)


@pytest_asyncio.fixture
async def pooler(postgres_storage_url: str) -> AsyncIterator[TransactionPooler]:
    async with TransactionPooler.before(postgres_storage_url) as pooler:
        yield pooler


async def test_a_run_lives_its_life_on_changing_connections(pooler: TransactionPooler) -> None:
    storage = open_storage(pooler.url, SystemClock(), hints=False)
    await create(storage, "x")
    run = await claim_one(storage)

    renewed = await storage.renew([Renewal(run.id, token_of(run), A_MINUTE)])
    next_claim = await claim(storage, outcomes=[success(run, "done")])

    assert set(renewed.renewed) == {run.id}
    assert next_claim.runs == ()
    assert (await reload(storage, run)).status is Status.SUCCEEDED
    await check_all(storage, [run.id])
    await storage.close()


async def test_many_clients_share_few_connections(pooler: TransactionPooler) -> None:
    storage = open_storage(pooler.url, SystemClock(), hints=False)

    await asyncio.gather(*(storage.commit([new_run(n) for n in range(5)]) for _ in range(20)))
    claims = await asyncio.gather(*(claim(storage, 10) for _ in range(20)))

    claimed = [run.id for answer in claims for run in answer.runs]
    assert len(claimed) == len(set(claimed)) == 100
    await storage.close()


@pytest.mark.parametrize("options", [{"hints": False}, {}], ids=["hints off", "hints by default"])
async def test_a_worker_executes_a_hundred_runs(
    pooler: TransactionPooler, options: dict[str, Any]
) -> None:
    app = App(pooler.url, defaults=QUICK, **options)
    double = _doubling(app)

    async with app.run_all():
        runs = await asyncio.gather(*(double.trigger(n) for n in range(100)))
        results = await asyncio.gather(*(run.result(MAX_WAIT_S) for run in runs))

    assert results == [2 * n for n in range(100)]
    assert pooler.transactions > 20
    assert pooler.most_connections_of_a_client > 1


async def test_with_a_direct_way_to_listen_hints_arrive(
    pooler: TransactionPooler, postgres_storage_url: str
) -> None:
    around: dict[str, Any] = {"listen_url": postgres_storage_url}
    asking = App(pooler.url, defaults=PATIENT, **around)
    working = App(pooler.url, defaults=PATIENT, **around)
    double = _doubling(asking)
    _doubling(working)

    async with working.run_all(), asking:
        await (await double.trigger(1)).result(MAX_WAIT_S)
        run = await double.trigger(21)

        assert await run.result(MAX_WAIT_S) == 42


async def test_effects_and_success_commit_together_on_changing_connections(
    pooler: TransactionPooler, postgres_storage_url: str
) -> None:
    """Often enough for their statements to be prepared, if they were."""
    app = App(pooler.url, defaults=QUICK)

    @app.task
    async def keep(ctx: Context, n: int) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO kept VALUES (%s)", (n,))

    @app.task
    def keep_in_a_thread(ctx: Context, n: int) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO kept VALUES (%s)", (n,))

    execute(postgres_storage_url, "CREATE TABLE kept (n integer)")
    async with app.run_all():
        runs = [await task.trigger(n) for n in range(20) for task in (keep, keep_in_a_thread)]
        await asyncio.gather(*(run.result(MAX_WAIT_S) for run in runs))

    [[found]] = execute(postgres_storage_url, "SELECT count(*), count(DISTINCT n) FROM kept")
    assert found == (40, 20)


async def test_statements_are_prepared_where_nobody_stands_between(
    postgres_storage_url: str, pooler: TransactionPooler
) -> None:
    assert await _prepares(postgres_storage_url) == 3
    assert await _prepares(postgres_storage_url, prepare=False) is None
    assert await _prepares(pooler.url) is None
    assert await _prepares(pooler.url, prepare=True) == 3


async def _prepares(url: str, **options: Any) -> int | None:
    storage = PostgresStorage(url, SystemClock(), hints=False, **options)
    try:
        async with storage._connection() as connection:
            return connection.prepare_threshold
    finally:
        await storage.close()


async def test_the_pooler_of_these_tests_does_lose_prepared_statements(
    pooler: TransactionPooler,
) -> None:
    storage = open_storage(pooler.url, SystemClock(), prepare=True, hints=False, retries=0)

    answers = [await _error_of(storage.now()) for _ in range(20)]

    assert any("prepared statement" in answer for answer in answers), answers
    await storage.close()


async def _error_of(call: Awaitable[object]) -> str:
    try:
        await call
    except PerdureError as error:
        return str(error)
    return ""


def _doubling(app: App) -> Any:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    return double
