"""`ctx.transaction()` where everything happens on one connection in memory, as in a test kit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fix_app import QUICK
from perdure import App, Context, Retry, RunHandle
from perdure.errors import RunFailed, RunNotFound
from perdure.storage import Storage
from waiting import MAX_WAIT_S

ONCE = Retry(max_attempts=1)
AGAIN = Retry(max_attempts=3, initial=0.01)
INSERT = "INSERT INTO effects VALUES (?)"


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", defaults=QUICK, inline=True)


def raw_of(storage: Storage) -> Any:
    inline: Any = storage
    return inline._connection.raw


async def test_effects_children_and_success_come_together(app: App) -> None:
    children: list[RunHandle[None]] = []

    @app.task
    async def child() -> None: ...

    @app.task(retry=AGAIN)
    async def pay(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (ctx.attempt,))
            children.append(await child.trigger())
            await asyncio.sleep(0)  # others may write meanwhile
            await connection.executemany(INSERT, [(10 * ctx.attempt,)])
            rows = await (await connection.execute("SELECT number FROM effects")).fetchall()
        assert rows == [(ctx.attempt,), (10 * ctx.attempt,)]
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    async with app, app.worker(same_loop=True):
        raw = raw_of(app.storage)
        raw.execute("CREATE TABLE effects (number INTEGER)")
        assert await (await pay.trigger()).result(MAX_WAIT_S) == 2
        assert raw.execute("SELECT number FROM effects").fetchall() == [(2,), (20,)]
        with pytest.raises(RunNotFound):
            await children[0].get()
        await children[1].result(MAX_WAIT_S)


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", None])
async def test_committing_by_oneself_is_refused(app: App, statement: str | None) -> None:
    @app.task(retry=ONCE)
    async def early(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, (1,))
            if statement is None:
                await connection.commit()
            else:
                await connection.execute(statement)

    async with app, app.worker(same_loop=True):
        raw = raw_of(app.storage)
        raw.execute("CREATE TABLE effects (number INTEGER)")
        with pytest.raises(RunFailed, match=r"leave the transaction|not authorized"):
            await (await early.trigger()).result(MAX_WAIT_S)
        assert raw.execute("SELECT number FROM effects").fetchall() == []
