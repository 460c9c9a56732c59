"""`ctx.transaction()`: effects and success commit together, on both adapters."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

import process_tasks
from borrowers import path_of
from fix_app import QUICK
from perdure import App, Context, Retry, RunHandle
from perdure.core.decide import decide_shutdown
from perdure.core.run.commit import prepare_commit
from perdure.core.run.events import RunSucceeded
from perdure.core.run.run import Run
from perdure.errors import RunFailed, RunNotFound, RunUnsuccessful, StorageRefused
from waiting import MAX_WAIT_S

ONCE = Retry(max_attempts=1)
AGAIN = Retry(max_attempts=5, initial=0.01)


class Effects:
    """A table of the user's in the same database, seen from outside."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.mark = "?" if url.startswith("sqlite") else "%s"
        self.query("CREATE TABLE effects (run_id text, attempt integer)")

    @property
    def insert(self) -> str:
        return f"INSERT INTO effects VALUES ({self.mark}, {self.mark})"

    def query(self, text: str) -> list[tuple[Any, ...]]:
        if self.url.startswith("sqlite"):
            with sqlite3.connect(path_of(self.url)) as connection:
                rows = connection.execute(text).fetchall()
            connection.close()
            return rows
        with psycopg.connect(self.url) as opened:
            cursor = opened.execute(text.encode())
            return cursor.fetchall() if cursor.description is not None else []

    @property
    def all(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT run_id, attempt FROM effects")


@pytest.fixture
def effects(storage_url: str) -> Effects:
    return Effects(storage_url)


async def test_an_async_handler_commits_its_effects_with_its_success(
    app: App, effects: Effects
) -> None:
    @app.task(retry=ONCE)
    async def pay(ctx: Context, amount: int) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            cursor = await connection.execute("SELECT count(*) FROM effects")
            [count] = await cursor.fetchone()
        assert effects.all == []  # leaving the block does not commit
        return amount + int(count)

    async with app.run_all():
        run = await pay.trigger(41)
        assert await run.result(MAX_WAIT_S) == 42
        assert effects.all == [(run.id, 1)]
        events = await app.runs.events(run.id)
        succeeded = events[-1].event
        assert isinstance(succeeded, RunSucceeded)
        assert (succeeded.execution_trace or {})["executor"] == "async"


async def test_a_sync_handler_commits_its_effects_with_its_success(
    app: App, effects: Effects
) -> None:
    @app.task(retry=ONCE)
    def pay(ctx: Context) -> str:
        with ctx.transaction() as connection:
            connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
        assert effects.all == []
        return "paid"

    async with app.run_all():
        run = await pay.trigger()
        assert await run.result(MAX_WAIT_S) == "paid"
        assert effects.all == [(run.id, 1)]


@pytest.mark.parametrize("where", ["inside", "after"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_exception_rolls_everything_back(
    app: App, effects: Effects, kind: str, where: str
) -> None:
    def complain(ctx: Context, here: str) -> None:
        if ctx.attempt == 1 and here == where:
            raise ValueError("not yet")

    async def pay_async(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            complain(ctx, "inside")
        complain(ctx, "after")
        return ctx.attempt

    def pay_sync(ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            complain(ctx, "inside")
        complain(ctx, "after")
        return ctx.attempt

    pay: Any = app.task(retry=AGAIN)(pay_async if kind == "async" else pay_sync)
    async with app.run_all():
        run = await pay.trigger()
        assert await run.result(MAX_WAIT_S) == 2
        assert effects.all == [(run.id, 2)]


async def test_an_error_caught_outside_of_the_block_leaves_a_success_without_effects(
    app: App, effects: Effects
) -> None:
    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> str:
        try:
            async with ctx.transaction() as connection:
                await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
                raise LookupError
        except LookupError:
            return "nothing to pay"

    async with app.run_all():
        assert await (await pay.trigger()).result(MAX_WAIT_S) == "nothing to pay"
        assert effects.all == []


async def test_a_release_rolls_back(app: App, effects: Effects) -> None:
    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            if ctx.attempt == 1:
                ctx.release(delay=0.01)
        return ctx.attempt

    async with app.run_all():
        run = await pay.trigger()
        assert await run.result(MAX_WAIT_S) == 2
        assert effects.all == [(run.id, 2)]


async def test_a_cancellation_while_it_is_open_rolls_back(app: App, effects: Effects) -> None:
    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> None:
        await app.runs.cancel(ctx.run_id)
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            await asyncio.Event().wait()

    async with app.run_all():
        run = await pay.trigger()
        assert (await _ended(run)).status == "cancelled"
        assert effects.all == []


async def test_a_cancel_request_does_not_spoil_success(app: App, effects: Effects) -> None:
    """The lease and the grace are longer than a busy machine needs for the transaction."""
    long = timedelta(seconds=MAX_WAIT_S)
    app.defaults = replace(QUICK, lease_ttl=long, cancel_grace=long, abandon_after=2 * long)
    entered = asyncio.Event()

    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> str:
        with suppress(asyncio.CancelledError):
            entered.set()
            await asyncio.Event().wait()
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
        return "paid all the same"

    async with app.run_all():
        run = await pay.trigger()
        await entered.wait()
        await app.runs.cancel(run.id)
        assert await run.result(MAX_WAIT_S) == "paid all the same"
        assert effects.all == [(run.id, 1)]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_lost_lease_rolls_back(app: App, effects: Effects, kind: str) -> None:
    """The handler returns after its run was taken away, before the worker has heard of it."""
    attempts: list[str] = []

    async def pay_async(ctx: Context) -> int:
        await asyncio.to_thread(steal, ctx)
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
        return ctx.attempt

    def pay_sync(ctx: Context) -> int:
        steal(ctx)
        with ctx.transaction() as connection:
            connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
        return ctx.attempt

    def steal(ctx: Context) -> None:
        attempts.append(ctx.run_id)
        if ctx.attempt == 1:
            asyncio.run_coroutine_threadsafe(_take_away(app, ctx.run), loop).result()

    app.defaults = replace(QUICK, lease_ttl=timedelta(seconds=60))
    pay: Any = app.task(retry=AGAIN)(pay_async if kind == "async" else pay_sync)
    loop = asyncio.get_running_loop()
    async with app, app.worker():
        run = await pay.trigger()
        assert await run.result(MAX_WAIT_S) == 2
    assert effects.all == [(run.id, 2)]
    assert len(attempts) == 2


async def _take_away(app: App, run: Run) -> None:
    """What recovery would do, without waiting for the lease to expire."""
    assert run.lease is not None
    now = await app.storage.now()
    events = decide_shutdown(run, run.lease.token, now)
    [outcome] = await app.storage.commit([prepare_commit(run, events, app.ids.commit_id())])
    assert not isinstance(outcome, Exception), outcome


async def test_a_timeout_rolls_back(app: App, effects: Effects) -> None:
    app.defaults = replace(QUICK, lease_ttl=timedelta(seconds=60))

    @app.task(retry=ONCE, timeout=0.1)
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            await asyncio.Event().wait()

    async with app.run_all():
        run = await pay.trigger()
        with pytest.raises(RunFailed, match="timeout"):
            await run.result(MAX_WAIT_S)
        assert effects.all == []


async def test_shutdown_rolls_back_and_hands_over(app: App, effects: Effects) -> None:
    app.defaults = replace(
        QUICK, lease_ttl=timedelta(seconds=60), drain_deadline=timedelta(milliseconds=50)
    )
    entered = asyncio.Event()

    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            if ctx.attempt == 1:
                entered.set()
                await asyncio.Event().wait()
        return ctx.attempt

    async with app:
        run = await pay.trigger()
        async with app.worker():
            await entered.wait()
        assert effects.all == []
        async with app.worker():
            assert await run.result(MAX_WAIT_S) == 2
        assert effects.all == [(run.id, 2)]


async def test_a_result_that_cannot_be_kept_rolls_back(app: App, effects: Effects) -> None:
    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> Any:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
        return float("nan")

    async with app.run_all():
        with pytest.raises(RunFailed, match="result"):
            await (await pay.trigger()).result(MAX_WAIT_S)
        assert effects.all == []


# Runs triggered inside


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_children_exist_if_and_only_if_the_attempt_succeeds(
    app: App, effects: Effects, kind: str
) -> None:
    children: list[RunHandle[int]] = []

    @app.task
    def child(number: int) -> int:
        return number

    async def parent_async(ctx: Context) -> None:
        async with ctx.transaction():
            children.append(await child.trigger(ctx.attempt))
        children.extend(await child.trigger_many([{"number": 10 * ctx.attempt}]))  # type: ignore[arg-type]
        if ctx.attempt == 1:
            raise ValueError("not yet")

    def parent_sync(ctx: Context) -> None:
        with ctx.transaction():
            children.append(child.trigger_sync(ctx.attempt))
        children.extend(child.trigger_many_sync([{"number": 10 * ctx.attempt}]))  # type: ignore[arg-type]
        if ctx.attempt == 1:
            raise ValueError("not yet")

    parent: Any = app.task(retry=AGAIN)(parent_async if kind == "async" else parent_sync)
    async with app.run_all():
        run = await parent.trigger()
        await run.result(MAX_WAIT_S)
        for never in children[:2]:
            with pytest.raises(RunNotFound):
                await never.get()
        assert [await handle.result(MAX_WAIT_S) for handle in children[2:]] == [2, 20]
        assert (await children[2].get()).parent_id == run.id


async def test_a_child_can_be_triggered_on_the_connection_itself(
    app: App, effects: Effects
) -> None:
    @app.task
    def child() -> str:
        return "born"

    @app.task(retry=ONCE)
    async def parent(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            return (await child.using(connection).trigger()).id

    async with app.run_all():
        child_id = await (await parent.trigger()).result(MAX_WAIT_S)
        assert await app.runs.handle(child_id).result(MAX_WAIT_S) == "born"


async def test_waiting_for_a_child_inside_is_refused(app: App, effects: Effects) -> None:
    @app.task
    def child() -> None: ...

    @app.task(retry=ONCE)
    async def parent(ctx: Context) -> None:
        async with ctx.transaction():
            await (await child.trigger()).result()

    async with app.run_all():
        with pytest.raises(RunFailed, match="exists only once that is committed"):
            await (await parent.trigger()).result(MAX_WAIT_S)


# What it refuses


async def _failure(app: App, handler: Any, **settings: Any) -> str:
    task: Any = app.task(retry=ONCE, **settings)(handler)
    async with app.run_all():
        with pytest.raises(RunFailed) as failed:
            await (await task.trigger()).result(MAX_WAIT_S)
    return failed.value.why


async def test_a_second_one_is_refused(app: App, effects: Effects) -> None:
    async def twice(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        async with ctx.transaction():
            pass

    assert "one ctx.transaction() an attempt" in await _failure(app, twice)


async def test_the_wrong_kind_of_with_is_refused(app: App, effects: Effects) -> None:
    async def blocks(ctx: Context) -> None:
        with ctx.transaction():
            pass

    assert "`async with ctx.transaction()`" in await _failure(app, blocks)


ENDINGS = ["COMMIT", "ROLLBACK", "BEGIN", "END", "/* ! */ commit", "-- \n ROLLBACK"]
POSTGRES_ENDINGS = [
    "ABORT",
    "PREPARE TRANSACTION 'x'",
    "SELECT 1; COMMIT; BEGIN",
    "START TRANSACTION",
]


@pytest.mark.parametrize("how", ["method", *ENDINGS, *POSTGRES_ENDINGS])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_committing_by_oneself_is_refused_and_leaves_no_effect(
    app: App, effects: Effects, kind: str, how: str
) -> None:
    if how in POSTGRES_ENDINGS and effects.url.startswith("sqlite"):
        return

    async def early_async(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run.id, ctx.attempt))
            await (connection.commit() if how == "method" else connection.execute(how))

    def early_sync(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(effects.insert, (ctx.run.id, ctx.attempt))
            connection.commit() if how == "method" else connection.execute(how)

    why = await _failure(app, early_async if kind == "async" else early_sync)
    assert any(word in why for word in ("forbidden", "leave the transaction to Perdure")), why
    assert effects.all == []


async def test_a_script_on_sqlite_is_refused_because_it_would_commit(
    sqlite_storage_url: str,
) -> None:
    def script(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.executescript("SELECT 1")

    why = await _failure(App(sqlite_storage_url, defaults=QUICK), script)
    assert "executescript would commit" in why


@pytest.mark.parametrize("statement", [b"COMMIT", b"COMMIT; BEGIN"])
async def test_whoever_commits_behind_our_back_does_not_succeed(
    postgres_storage_url: str, statement: bytes
) -> None:
    async def sly(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.pgconn.exec_(statement)

    why = await _failure(App(postgres_storage_url, defaults=QUICK), sly)
    assert "the handler ended its transaction by itself" in why


async def test_going_on_after_a_failed_statement_is_explained(
    postgres_storage_url: str,
) -> None:
    app = App(postgres_storage_url, defaults=QUICK)

    async def goes_on(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            with suppress(psycopg.Error):
                await connection.execute("SELECT no_such_column")

    assert "a savepoint" in await _failure(app, goes_on)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_on_sqlite_it_is_rolled_back_after_a_third_of_the_lease(
    sqlite_storage_url: str, kind: str
) -> None:
    effects = Effects(sqlite_storage_url)
    app = App(sqlite_storage_url, defaults=replace(QUICK, lease_ttl=timedelta(seconds=6)))
    waiting = threading.Event()

    async def slow_async(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            while True:
                await connection.execute("SELECT 1")

    def slow_sync(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(effects.insert, (ctx.run_id, ctx.attempt))
            waiting.wait(3)
        return None

    why = await _failure(app, slow_async if kind == "async" else slow_sync)
    assert "was open for more than 0:00:02" in why
    assert effects.all == []


async def test_on_sqlite_a_handler_does_not_wait_for_its_own_lock(
    sqlite_storage_url: str,
) -> None:
    app = App(sqlite_storage_url, defaults=replace(QUICK, lease_ttl=timedelta(seconds=60)))
    refused: list[StorageRefused] = []

    @app.task(retry=ONCE)
    async def meddle(ctx: Context) -> str:
        async with ctx.transaction():
            try:
                await app.runs.cancel(ctx.run_id)
            except StorageRefused as error:
                refused.append(error)
        return "done"

    async with app.run_all():
        assert await (await meddle.trigger()).result(MAX_WAIT_S) == "done"
    assert "holds the only write lock" in str(refused[0])


async def test_many_transactions_at_once_all_succeed(app: App, effects: Effects) -> None:
    @app.task(retry=ONCE)
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(effects.insert, (ctx.run_id, ctx.attempt))

    @app.task(retry=ONCE)
    def pay_in_a_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(effects.insert, (ctx.run_id, ctx.attempt))

    async with app.run_all():
        runs = [await task.trigger() for task in (pay, pay_in_a_thread) for _ in range(20)]
        await asyncio.gather(*(run.result(MAX_WAIT_S) for run in runs))
    assert sorted(row[0] for row in effects.all) == sorted(run.id for run in runs)


async def _ended(run: RunHandle[Any]) -> Run:
    with suppress(RunUnsuccessful):
        await run.result(MAX_WAIT_S)
    return await run.get()


async def test_a_process_refuses_it(app: App) -> None:
    task = app.task(retry=ONCE, executor="process")(process_tasks.transact)
    async with app.run_all():
        with pytest.raises(RunFailed, match='leave out executor="process"'):
            await (await task.trigger()).result(MAX_WAIT_S)
