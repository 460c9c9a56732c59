"""`app.doctor()` on real databases with real troubles."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

import raw
from builders import TASK
from perdure import App
from perdure.core.explain.health import Code, Finding
from perdure.core.limits.admission import Gate, LimitScope
from perdure.engine.runtime.defaults import Defaults
from situations import a_worker
from storage_kit import claim_one, new_run, set_limit, stored, success
from waiting import MAX_WAIT_S

QUICK = Defaults(maintenance_tick=timedelta(milliseconds=10), lease_ttl=timedelta(seconds=1))


async def problems(app: App) -> set[Code]:
    return {finding.code for finding in (await app.doctor()).findings if finding.is_problem}


async def found(app: App, code: Code) -> list[Finding]:
    """Of one kind: the server is other tests' too, and may give cause for more."""
    return [finding for finding in (await app.doctor()).findings if finding.code is code]


async def registered(app: App, worker_id: str) -> None:
    async with asyncio.timeout(MAX_WAIT_S):
        while worker_id not in {worker.id for worker in await app.workers.list()}:
            pass


async def test_a_fresh_database_has_no_problems(app: App) -> None:
    examination = await app.doctor()

    assert examination.is_healthy
    assert examination.vitals is not None
    assert examination.vitals.bytes > 0


async def test_due_runs_in_a_queue_that_nobody_serves_are_a_problem(opened: App) -> None:
    await stored(opened.storage, new_run(queue="mail"))
    assert await problems(opened) == {Code.UNSERVED_QUEUES}

    async with opened.worker(queues=["other"]) as worker:
        await registered(opened, worker.id)
        assert await problems(opened) == {Code.UNSERVED_QUEUES}
    async with opened.worker(queues=["mail"]) as worker:
        await registered(opened, worker.id)
        assert await problems(opened) == {Code.UNSERVED_TASKS}  # the app has no tasks
    assert await problems(opened) == {Code.UNSERVED_QUEUES}


async def test_runs_that_nobody_forgets_are_a_problem(storage_url: str) -> None:
    app = App(storage_url, defaults=Defaults(retention=timedelta(days=1)))
    async with app:
        await stored(app.storage, new_run())
        await stored(app.storage, success(await claim_one(app.storage)))
    assert await problems(app) == set()
    long_ago = {"sqlite": "0", "postgresql": "'2020-01-01'"}[storage_url.partition(":")[0]]
    raw.execute(storage_url, f"UPDATE perdure_runs SET finished_at = {long_ago}")

    assert await problems(app) == {Code.PRUNING_LATE}


async def test_a_worker_that_fell_silent_is_noted_and_one_that_ended_is_not(
    storage_url: str,
) -> None:
    app = App(storage_url, defaults=QUICK)
    async with app:
        await a_worker(app, "silent")
        await a_worker(app, "ended", stopping=True, stopped=True)
    long_ago = {"sqlite": "0", "postgresql": "'2020-01-01'"}[storage_url.partition(":")[0]]
    raw.execute(storage_url, f"UPDATE perdure_records SET seen_at = {long_ago}")

    [finding] = await found(app, Code.SILENT_WORKERS)

    assert not finding.is_problem
    assert "silent on" in finding.sentence
    assert "ended on" not in finding.sentence


async def test_a_lease_that_nobody_takes_back_tells_that_maintenance_does_not_run(
    opened: App,
) -> None:
    await stored(opened.storage, new_run())
    await claim_one(opened.storage)
    when = {"sqlite": "0", "postgresql": "'2020-01-01'"}[opened.url.partition(":")[0]]
    raw.execute(opened.url, f"UPDATE perdure_runs SET lease_expires_at = {when}")

    assert await problems(opened) == {Code.MAINTENANCE_LATE}


async def test_a_run_that_cannot_be_read_is_a_problem(opened: App) -> None:
    await stored(opened.storage, new_run())
    raw.execute(opened.url, "UPDATE perdure_runs SET gate = 'unreadable', claimable_at = NULL")

    assert await problems(opened) == {Code.UNREADABLE_RUNS}


async def test_runs_behind_a_limit_with_room_are_a_problem(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)
    async with app:
        gate = Gate(LimitScope.KEY, TASK, "acme")
        await set_limit(app.storage, LimitScope.KEY, TASK, 5)
        await stored(app.storage, new_run(concurrency_key="acme"))
        raw.execute(storage_url, f"UPDATE perdure_runs SET gate = '{gate}'")

        [stuck] = [f for f in (await app.doctor()).findings if f.code is Code.STUCK_GATES]
        assert f"key {TASK} acme" in stuck.sentence
        async with app.maintenance():
            assert Code.STUCK_GATES not in await problems(app)


async def test_a_database_without_our_schema_is_a_problem(
    tmp_path: Path, postgres_url: str
) -> None:
    for url in (f"sqlite:///{tmp_path / 'empty.db'}", postgres_url):
        assert await problems(App(url)) == {Code.SCHEMA}


async def test_a_database_that_does_not_answer_is_a_problem(unused_tcp_port: int) -> None:
    app = App(f"postgresql://nobody@127.0.0.1:{unused_tcp_port}/none", retries=0)

    assert await problems(app) == {Code.UNREACHABLE}


# PostgreSQL


@asynccontextmanager
async def transaction(url: str, statement: str) -> AsyncIterator[None]:
    """Open, and idle, on somebody else's connection."""
    async with await psycopg.AsyncConnection.connect(url, application_name="sleepy") as connection:
        await connection.execute(statement.encode())
        yield
        await connection.rollback()


async def test_a_transaction_left_open_is_a_problem(
    postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.core.explain.health.LONG_IDLE", timedelta(0))
    app = App(postgres_storage_url)
    async with transaction(postgres_storage_url, "SELECT txid_current()"):
        [finding] = await found(app, Code.IDLE_TRANSACTION)

    assert "(sleepy)" in finding.sentence
    assert "change feed" in finding.advice
    assert await problems(app) == set()


async def test_a_table_without_autovacuum_is_a_problem(postgres_storage_url: str) -> None:
    app = App(postgres_storage_url)
    raw.execute(postgres_storage_url, "ALTER TABLE perdure_runs SET (autovacuum_enabled = off)")

    assert await problems(app) == {Code.AUTOVACUUM_OFF}


async def test_an_index_that_is_not_valid_is_a_problem(postgres_storage_url: str) -> None:
    app = App(postgres_storage_url)
    raw.execute(
        postgres_storage_url,
        "UPDATE pg_index SET indisvalid = false"
        " WHERE indexrelid = 'perdure_runs_finished'::regclass",
    )

    [finding] = await found(app, Code.BROKEN_INDEXES)

    assert "perdure_runs_finished" in finding.sentence


async def test_a_database_that_confirms_too_early_is_a_problem(postgres_storage_url: str) -> None:
    name = postgres_storage_url.rpartition("/")[2].partition("?")[0]
    raw.execute(postgres_storage_url, f'ALTER DATABASE "{name}" SET synchronous_commit = off')

    assert await problems(App(postgres_storage_url)) == {Code.NOT_DURABLE}


async def test_dead_rows_are_a_problem_only_while_a_transaction_keeps_them(
    postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.core.explain.health.MANY_DEAD", 1)
    monkeypatch.setattr("perdure.core.explain.health.LONG_IDLE", timedelta(0))
    app = App(postgres_storage_url)
    async with app:
        await stored(app.storage, *(new_run() for _ in range(20)))
    statements = ["UPDATE perdure_runs SET priority = 1"] * 3
    raw.execute(postgres_storage_url, *statements, "SELECT pg_stat_force_next_flush()")

    async with (
        transaction(postgres_storage_url, "SELECT txid_current()"),
        asyncio.timeout(MAX_WAIT_S),
    ):
        while not (dead := await found(app, Code.DEAD_ROWS)):
            raw.execute(postgres_storage_url, statements[0])
    released = await found(app, Code.DEAD_ROWS)

    assert "while a transaction of process" in dead[0].advice
    assert "(sleepy) is open" in dead[0].advice
    assert released == []


# SQLite


async def test_a_log_that_a_reader_keeps_from_being_moved_over_is_a_problem(
    sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("perdure.core.explain.health", "perdure.storage.sqlite.storage"):
        monkeypatch.setattr(f"{module}.LONG_LOG", 2**16)
    app = App(sqlite_storage_url)
    async with app:
        path = sqlite_storage_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM perdure_runs").fetchall()
            await stored(app.storage, *(new_run("x" * 1000) for _ in range(100)))
            held = await problems(app)
            reader.execute("COMMIT")
        released = await problems(app)

    assert (Code.LONG_LOG in held, Code.LONG_LOG in released) == (True, False)


async def test_a_full_disk_is_a_problem(
    sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.core.explain.health.LITTLE_SPACE", 2**60)

    assert await problems(App(sqlite_storage_url)) == {Code.LITTLE_SPACE}


async def test_a_sqlite_with_the_fault_is_noted(
    sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.storage.sqlite.vitals.has_wal_reset_fault", lambda: True)

    [note] = (await App(sqlite_storage_url).doctor()).findings

    assert note.code is Code.WAL_RESET_FAULT
    assert sqlite3.sqlite_version in note.sentence
