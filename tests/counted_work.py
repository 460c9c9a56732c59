"""The work that runs cost, counted: it is the same on every machine, busy or idle."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from types import FrameType
from typing import Any

import psycopg

from perdure import App
from perdure.core.decide import decide_success
from perdure.core.json_text import encode_value
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.definition.task import Task
from perdure.engine.runtime.ids import make_token
from perdure.storage.contract.runs import ClaimRequest
from waiting import MAX_WAIT_S

PADDING = "x" * 100
NO_RESULT = encode_value(None)
CLAIM = 500


@dataclass(frozen=True)
class Work:
    """For one run. What is None does not apply."""

    statements: float | None = None
    commits: float | None = None
    wal_bytes: float | None = None
    calls: float | None = None

    def excess(self, limit: Work) -> list[str]:
        """What is more than the limit allows; a limit is needed for all there is."""
        return [
            f"{field.name}: {mine:.3f} a run, at most {most}"
            for field in fields(self)
            if (mine := getattr(self, field.name)) is not None
            and ((most := getattr(limit, field.name)) is None or mine > most)
        ]


class Bench:
    """An app with one task, and a count of what it sends to its database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statements: list[str] = []
        # Wake-ups are sent or merged as time has it, so they cannot be counted.
        self.app = App(url, hints=False, on_statement=self.statements.append)
        self.task: Task[[float, str], None] = self.app.task(self.noop)
        self.executed = 0
        self.all_executed = asyncio.Event()
        self.expected = 0

    async def noop(self, sent: float, padding: str) -> None:
        self.executed += 1
        if self.executed == self.expected:
            self.all_executed.set()

    async def trigger_one_by_one(self, count: int) -> None:
        for _ in range(count):
            await self.task.trigger(0.0, PADDING)

    async def trigger_in_bulk(self, count: int) -> None:
        for _ in range(count // CLAIM):
            await self.task.trigger_many([{"sent": 0.0, "padding": PADDING}] * CLAIM)

    async def drain_by_claims(self, count: int) -> None:
        """What a worker's claim loop asks of the storage, without its clockwork."""
        outcomes: list[Commit] = []
        for _ in range(count // CLAIM):
            claimed = await self.app.storage.claim(self._request(CLAIM), outcomes)
            assert len(claimed.runs) == CLAIM
            outcomes = [self._success(run) for run in claimed.runs]
        await self.app.storage.commit(outcomes)

    async def forget(self, count: int) -> None:
        """What maintenance asks of the storage once runs are too old."""
        later = await self.app.storage.now() + timedelta(hours=1)
        for _ in range(count // CLAIM):
            assert await self.app.storage.prune(Status.SUCCEEDED, later, CLAIM) == CLAIM

    def _request(self, places: int) -> ClaimRequest:
        return ClaimRequest(
            worker_id="counted",
            tokens=tuple(make_token() for _ in range(places)),
            tasks=(self.task.name,),
            start=places,
            commit_id=make_token(),
        )

    def _success(self, run: Run) -> Commit:
        assert run.lease is not None
        events = decide_success(run, run.lease.token, self.app.time(), NO_RESULT)
        return prepare_commit(run, events, make_token())

    async def drain_by_worker(self, count: int) -> None:
        self.expected = self.executed + count
        self.all_executed.clear()
        async with self.app.worker(concurrency=2 * CLAIM):
            async with asyncio.timeout(MAX_WAIT_S):
                await self.all_executed.wait()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Bench]:
    bench = Bench(url)
    async with bench.app:
        yield bench


async def stored_work(bench: Bench, deed: Callable[[int], Awaitable[None]], count: int) -> Work:
    """What the database was asked for by a deed that concerns `count` runs."""
    log = _Log(bench.url)
    before = log.read()
    bench.statements.clear()
    await deed(count)
    statements = len(bench.statements)
    after = log.read()
    if after is None or before is None:
        commits = bench.statements.count("commit")
        return Work(statements=statements / count, commits=commits / count)
    return Work(
        statements=statements / count,
        commits=(after[0] - before[0]) / count,
        wal_bytes=(after[1] - before[1]) / count,
    )


class _Log:
    """Transactions that wrote, and bytes of the log, of a server that does nothing else."""

    def __init__(self, url: str) -> None:
        self._url = url if url.startswith("postgres") else None

    def read(self) -> tuple[int, int] | None:
        if self._url is None:
            return None
        with psycopg.connect(self._url, autocommit=True) as connection:
            [[transactions, position]] = connection.execute(
                "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"
                "       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
            ).fetchall()
        return int(transactions), int(position)


async def python_work(deed: Callable[[], Awaitable[None]], count: int) -> Work:
    """Calls of functions, Python's and C's, by this thread and all that it starts."""
    calls = 0

    def count_call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    threading.setprofile(count_call)
    sys.setprofile(count_call)
    try:
        await deed()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Work(calls=calls / count)
