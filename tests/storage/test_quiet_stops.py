"""A clean stop logs nothing of the driver's, whatever statement it interrupts."""

from __future__ import annotations

import asyncio

import pytest
from psycopg.pq import TransactionStatus

from bell import Bell, ring
from fix_app import QUICK
from perdure import App, Context
from perdure.storage.postgres.liveness import LimitedConnection


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_an_interrupted_statement_of_ours_logs_nothing(
    postgres_url: str, cancellations: int, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await LimitedConnection.connect(postgres_url, autocommit=True)
    statement = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.wait([statement], timeout=0.1)
    assert connection.pgconn.transaction_status == TransactionStatus.ACTIVE

    for _ in range(cancellations):
        statement.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await statement

    assert connection.closed
    assert [it.message for it in caplog.records if it.name.startswith("psycopg")] == []


async def test_a_worker_that_stops_in_the_middle_of_a_handlers_statement_logs_nothing(
    postgres_storage_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App(postgres_storage_url, defaults=QUICK)

    @app.task
    async def sleep(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            ring(bell.path)
            await connection.execute("SELECT pg_sleep(60)")

    path = tmp_path_factory.mktemp("bell") / "bell"
    async with Bell(path) as bell, app, app.worker(concurrency=1, drain=0):
        await sleep.trigger()
        await bell.word()

    assert [it.message for it in caplog.records if it.name.startswith("psycopg")] == []
