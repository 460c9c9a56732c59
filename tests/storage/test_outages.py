"""Servers that go away, backends that are ended, processes that are killed: the storage goes on
by itself, and what it had acknowledged is there."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import pytest_asyncio

from blocker import Blocker
from builders import OPERATOR
from perdure.core.decide import decide_reschedule
from perdure.core.run.commit import Commit
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.storage import open_storage
from perdure.storage.contract.runs import Committed
from perdure.storage.contract.storage import Storage
from perdure.testing.postgres import PrivatePostgres
from processes import Member
from storage_kit import CLOCK, check_all, create, new_run, now, reload, request, step, stored

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def own_server() -> Iterator[PrivatePostgres]:
    """A server that nobody else minds losing."""
    with PrivatePostgres.start() as server:
        yield server


@pytest_asyncio.fixture
async def restartable(own_server: PrivatePostgres) -> AsyncIterator[Storage]:
    async with opened(own_server.create_database("restartable")) as storage:
        await storage.migrate()
        yield storage
    own_server.drop_database("restartable")


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Storage]:
    storage = open_storage(url, CLOCK, **options)
    try:
        yield storage
    finally:
        await storage.close()


def noted(run: Run) -> Commit:
    return step(run, decide_reschedule(run, OPERATOR, now(), priority=3))


async def test_a_server_may_crash_and_come_back_between_operations(
    own_server: PrivatePostgres, restartable: Storage
) -> None:
    run = await create(restartable)
    own_server.immediate_stop()
    own_server.restart()

    [run] = await stored(restartable, noted(run))

    own_server.immediate_stop()
    own_server.restart()
    assert (await reload(restartable, run)) == run
    own_server.immediate_stop()
    own_server.restart()
    [claimed] = (await restartable.claim(request(1))).runs
    await check_all(restartable, [claimed.id])


async def test_a_commit_waits_for_a_server_that_is_away(
    own_server: PrivatePostgres, restartable: Storage
) -> None:
    run = await create(restartable)
    own_server.immediate_stop()
    commit = asyncio.create_task(restartable.commit([noted(run)]))
    claim = asyncio.create_task(restartable.claim(request(1, queues=("another",))))
    await asyncio.sleep(0)  # both are on their way

    await asyncio.to_thread(own_server.restart)

    assert await commit == [Committed(run.id, 2)]
    assert (await claim).runs == ()
    await check_all(restartable, [run.id])


class Tries:
    """Counts how often the storage has begun to write the runs it wants to change."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()

    def __call__(self, statement: str) -> None:
        self._count += statement in ("update_runs", "start_runs", "end_runs")
        self._changed.set()

    async def reach(self, count: int) -> None:
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()


@pytest.mark.parametrize("function", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_a_backend_ended_while_it_waits_is_replaced(
    function: Literal["pg_terminate_backend", "pg_cancel_backend"], postgres_storage_url: str
) -> None:
    tries = Tries()
    async with opened(postgres_storage_url, on_statement=tries) as storage:
        run = await create(storage)
        async with Blocker.of(postgres_storage_url, run.id) as blocker:
            commit = asyncio.create_task(storage.commit([noted(run)]))
            await blocker.tell(f"SELECT {function}(%s)", await blocker.victim())
            await tries.reach(2)
            await blocker.release()

            assert await commit == [Committed(run.id, 2)]
        await check_all(storage, [run.id])


async def test_a_lock_that_takes_too_long_is_waited_for_again(postgres_storage_url: str) -> None:
    set_for_database(postgres_storage_url, "lock_timeout", "20ms")
    tries = Tries()
    async with opened(postgres_storage_url, on_statement=tries) as storage:
        run = await create(storage)
        async with Blocker.of(postgres_storage_url, run.id) as blocker:
            commit = asyncio.create_task(storage.commit([noted(run)]))
            await tries.reach(3)
            await blocker.release()

            assert await commit == [Committed(run.id, 2)]
        await check_all(storage, [run.id])


async def test_the_victim_of_a_deadlock_tries_again(postgres_storage_url: str) -> None:
    set_for_database(postgres_storage_url, "deadlock_timeout", "1s")
    async with opened(postgres_storage_url) as storage:
        low, high = await stored(storage, new_run(), new_run())
        async with Blocker.of(postgres_storage_url, high.id) as blocker:
            await blocker.execute("SET deadlock_timeout = '1h'")  # it is never the victim itself
            commit = asyncio.create_task(storage.commit([noted(low), noted(high)]))
            await blocker.victim()

            await blocker.lock(low.id)  # in the wrong order: the storage is the one to find out

            await blocker.release()
            assert await commit == [Committed(low.id, 2), Committed(high.id, 2)]
        await check_all(storage, [low.id, high.id])


def set_for_database(url: str, setting: str, value: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'".encode())


ROUNDS = 20
SEED = 7


async def test_what_a_killed_process_had_acknowledged_is_in_the_file(tmp_path: Path) -> None:
    """Each process works on the file that the one before it left behind."""
    path = tmp_path / "runs.db"
    chance = random.Random(SEED)
    acknowledged: dict[str, int] = {}
    for number in range(ROUNDS):
        member = Member()
        member.prepare("work_until_killed", f"sqlite:///{path}", {"worker_id": f"w{number}"})
        assert member.hear() == "ready"
        member.tell("go")
        for _ in range(chance.randrange(1, 25)):
            acknowledged |= dict(member.hear())
        member.kill()
        acknowledged |= dict(member.last_words())
        check_file(path, acknowledged)

    async with opened(f"sqlite:///{path}") as storage:
        found = await storage.get(sorted(acknowledged))
        await check_all(storage, sorted(found))
    assert {run.status for run in found.values()} >= {Status.SUCCEEDED, Status.QUEUED}


def check_file(path: Path, acknowledged: dict[str, int]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        stored = dict(connection.execute("SELECT id, sequence FROM perdure_runs").fetchall())
    lost = {run_id for run_id, sequence in acknowledged.items() if stored[run_id] < sequence}
    assert lost == set()
