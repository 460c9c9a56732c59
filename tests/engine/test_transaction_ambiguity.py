"""A COMMIT without an answer: what was committed is found out, and nothing happens twice."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fix_app import QUICK
from perdure import App, Context, Retry
from perdure.storage import Storage
from perdure.storage.postgres.transactions import PostgresTransactions
from proxy import Cut, Proxy
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

INSERT = "INSERT INTO effects VALUES (%s, %s)"


class DetourApp(App):
    """Whose handlers, and nobody else, reach the database through a proxy."""

    proxy: Proxy

    def open_storage(self) -> Storage:
        storage: Any = super().open_storage()
        storage.transactions = lambda: PostgresTransactions(self.proxy.url, say=lambda name: None)
        opened: Storage = storage
        return opened


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_lost_answer_is_settled_by_history(
    postgres_storage_url: str, kind: str, cut: Cut
) -> None:
    app = DetourApp(postgres_storage_url, defaults=QUICK)

    async def pay_async(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (ctx.run_id, ctx.attempt))
        app.proxy.cut = cut if ctx.attempt == 1 else None
        return ctx.attempt

    def pay_sync(ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute(INSERT, (ctx.run_id, ctx.attempt))
        app.proxy.cut = cut if ctx.attempt == 1 else None
        return ctx.attempt

    again = Retry(max_attempts=5, initial=0.01)
    pay: Any = app.task(retry=again)(pay_async if kind == "async" else pay_sync)
    with psycopg.connect(postgres_storage_url, autocommit=True) as outside:
        outside.execute("CREATE TABLE effects (run_id text, attempt integer)")
        async with Proxy.before(postgres_storage_url) as app.proxy, app.run_all():
            run = await pay.trigger()
            result = await run.result(MAX_WAIT_S)
            record = await run.get()
            types = [str(event.type) for event in await app.runs.events(run.id)]
            assert app.proxy.cuts == 1
        effects = outside.execute("SELECT run_id, attempt FROM effects").fetchall()

    settled_at = 1 if cut is Cut.AFTER_COMMIT else 2
    assert effects == [(run.id, settled_at)]
    assert result == settled_at
    assert (record.counters.failures, record.interruptions) == (0, settled_at - 1)
    assert types.count("run.succeeded") == 1
