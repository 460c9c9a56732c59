"""Kills workers at every point around the COMMIT of `ctx.transaction()`.

    make prove CAMPAIGN=transactions

Each life is a process of its own that executes transactional runs until it dies with SIGKILL:
by its own hand at a named point (see POINTS), or by its parent's at a random moment. After each
death one snapshot of the database must show, for every run, its effect, its child and its success
together, or none of them; and in the end every run has succeeded, with one effect and one child.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import psycopg

from ledger import mismatches
from perdure import App, Context, Retry
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.storage import Storage, open_storage
from perdure.storage.contract.transactions import Transaction, Transactions
from perdure.storage.sql.statements import Operation
from waiting import MAX_WAIT_S

T = TypeVar("T")

POINTS = (
    "before the effect",
    "after the effect",
    "after the child",
    "after the block",
    "before the lock",
    "after the lock",
    "before the append",
    "after the append, right before COMMIT",
    "right after COMMIT",
    "at random",
)
PLENTY = 100
ENOUGH = 40
"""Runs there are to be at least: some are leased by the dead."""
LIFE = 15.0
AGAIN = Retry(max_attempts=100_000, initial=0.01, maximum=0.05)
TERMS = Defaults(
    lease_ttl=timedelta(seconds=1),
    poll=timedelta(milliseconds=100),
    maintenance_tick=timedelta(milliseconds=50),
)


ENDED = ("succeeded", "failed", "dead_lettered")
SNAPSHOT = """
SELECT {id},
       (SELECT count(*) FROM effects WHERE effects.run_id = {id}),
       (SELECT count(*) FROM perdure_runs AS child WHERE child.parent_id = runs.id),
       CASE runs.status WHEN 'succeeded' THEN 1 ELSE 0 END
  FROM perdure_runs AS runs
 WHERE runs.task LIKE 'pay%'
"""


class Blade:
    """Falls at one point, the n-th time it is passed."""

    def __init__(self, point: str | None, times: int = 1) -> None:
        self._point = point
        self._left = times

    def passing(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def make_app(url: str, blade: Blade) -> App:
    mark = "?" if url.startswith("sqlite") else "%s"
    insert = f"INSERT INTO effects VALUES ({mark})"
    app = TorturedApp(blade, url, defaults=TERMS)

    @app.task(queue="children")
    def child() -> None: ...

    @app.task(retry=AGAIN)
    async def pay(ctx: Context) -> int:
        async with ctx.transaction() as connection:
            blade.passing("before the effect")
            await connection.execute(insert, (ctx.run_id,))
            blade.passing("after the effect")
            await child.trigger()
            blade.passing("after the child")
        blade.passing("after the block")
        return ctx.attempt

    @app.task(retry=AGAIN)
    def pay_in_a_thread(ctx: Context) -> int:
        with ctx.transaction() as connection:
            blade.passing("before the effect")
            connection.execute(insert, (ctx.run_id,))
            blade.passing("after the effect")
            child.trigger_sync()
            blade.passing("after the child")
        blade.passing("after the block")
        return ctx.attempt

    return app


class TorturedApp(App):
    """The real app on the real storage; only the operation that concludes is watched."""

    def __init__(self, blade: Blade, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._blade = blade

    def open_storage(self) -> Storage:
        storage: Any = super().open_storage()
        transactions = storage.transactions
        storage.transactions = lambda: WatchedTransactions(transactions(), self._blade)
        opened: Storage = storage
        return opened


class WatchedTransactions:
    def __init__(self, inner: Transactions, blade: Blade) -> None:
        self._inner = inner
        self._blade = blade
        self.dialect = inner.dialect
        self.close = inner.close

    async def begin(self, limit: timedelta) -> Transaction:
        return WatchedTransaction(await self._inner.begin(limit), self._blade)

    def begin_sync(self, limit: timedelta) -> Transaction:
        return WatchedTransaction(self._inner.begin_sync(limit), self._blade)


class WatchedTransaction:
    def __init__(self, inner: Transaction, blade: Blade) -> None:
        self._inner = inner
        self._blade = blade
        self.connection = inner.connection
        self.run = inner.run
        self.rollback = inner.rollback

    @property
    def problem(self) -> Exception | None:
        return self._inner.problem

    @property
    def is_lost(self) -> bool:
        return self._inner.is_lost

    async def conclude(self, operation: Operation[T]) -> T:
        value = await self._inner.conclude(self._watched(operation))
        self._blade.passing("right after COMMIT")
        return value

    def _watched(self, operation: Operation[T]) -> Operation[T]:
        self._blade.passing("before the lock")
        request = next(operation)
        answers = 0
        while True:
            if any(step.query == "insert_history" for step in request.steps):
                self._blade.passing("before the append")
            results = yield request
            answers += 1
            if answers == 1:
                self._blade.passing("after the lock")
            try:
                request = operation.send(results)
            except StopIteration as stop:
                self._blade.passing("after the append, right before COMMIT")
                value: T = stop.value
                return value


@dataclass
class Verdict:
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    torn: int = 0
    lost: int = 0
    double: int = 0
    mismatch: int = 0

    def __str__(self) -> str:
        counts = f"torn={self.torn} lost={self.lost} double={self.double} mismatch={self.mismatch}"
        return f"kills={self.kills.total()} runs={self.runs} {counts}"

    @property
    def is_clean(self) -> bool:
        return not (self.torn or self.lost or self.double or self.mismatch)


class Campaign:
    """Everything here happens between two lives: no thread and no connection stays open, so
    that a fork inherits none."""

    def __init__(self, url: str, seed: int, report: Callable[[int], None]) -> None:
        self._url = url
        self._report = report
        self._random = random.Random(seed)
        self._verdict = Verdict()
        is_sqlite = url.startswith("sqlite")
        spelt = "runs.id" if is_sqlite else "'run_' || replace(runs.id::text, '-', '')"
        self._snapshot = SNAPSHOT.format(id=spelt)

    def run(self, kills: int) -> Verdict:
        self._query("CREATE TABLE effects (run_id text)")
        wanted: set[str] = set()
        keeper = self._fork(self._keep())
        while self._verdict.kills.total() < kills:
            if self._count_open() < ENOUGH:
                wanted |= asyncio.run(self._trigger(PLENTY))
            point = POINTS[self._verdict.kills.total() % len(POINTS)]
            if self._live_and_die(point):
                self._verdict.kills[point] += 1
                self._report(self._verdict.kills.total())
            self._look()
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        asyncio.run(self._finish())
        self._judge(wanted)
        self._verdict.mismatch = asyncio.run(self._audit())
        return self._verdict

    def _count_open(self) -> int:
        return sum(not row[3] for row in self._query(self._snapshot))

    async def _trigger(self, number: int) -> set[str]:
        async with make_app(self._url, Blade(None)) as app:
            tasks = [app.tasks["pay"], app.tasks["pay_in_a_thread"]]
            return {(await tasks[index % 2].trigger()).id for index in range(number)}

    def _live_and_die(self, point: str) -> bool:
        """Whether it died as it should."""
        blade = Blade(point, self._random.randint(1, 3))
        child = self._fork(self._live(blade))
        if point == "at random":
            time.sleep(self._random.uniform(0.05, 0.6))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    async def _live(self, blade: Blade) -> None:
        app = make_app(self._url, blade)
        async with app, app.worker(concurrency=2, queues=["default"]):
            await asyncio.sleep(LIFE)

    async def _keep(self) -> None:
        async with make_app(self._url, Blade(None)).maintenance():
            await asyncio.Event().wait()

    async def _finish(self) -> None:
        app = make_app(self._url, Blade(None))
        async with app.run_all(queues=["default"]), asyncio.timeout(MAX_WAIT_S):
            while await self._unfinished(app):  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.1)

    async def _unfinished(self, app: App) -> int:
        counts = await app.storage.counts(app.environment)
        return sum(
            number
            for (queue, status), number in counts.items()
            if queue == "default" and status not in ENDED
        )

    async def _audit(self) -> int:
        storage = open_storage(self._url, SystemClock())
        try:
            return await mismatches(storage)
        finally:
            await storage.close()

    def _look(self) -> None:
        """One snapshot: whoever has one of the three has all of them."""
        torn = [row for row in self._query(self._snapshot) if len({bool(n) for n in row[1:]}) > 1]
        for row in torn:
            print(f"TORN: {row}", file=sys.stderr)
        self._verdict.torn += len(torn)

    def _judge(self, wanted: set[str]) -> None:
        found = {row[0]: row[1:] for row in self._query(self._snapshot)}
        self._verdict.runs = len(wanted)
        self._verdict.lost = sum(0 in found.get(run, (0,)) for run in wanted)
        self._verdict.double = sum(max(counts) > 1 for counts in found.values())
        self._look()

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        if self._url.startswith("sqlite"):
            connection = sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=30)
            with connection:
                rows = connection.execute(text).fetchall()
            connection.close()
            return rows
        with psycopg.connect(self._url) as opened:
            cursor = opened.execute(text.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def _fork(self, life: Any) -> int:
        child = os.fork()
        if child:
            life.close()
            return child
        try:
            asyncio.run(life)
        finally:
            os._exit(1)


def torture(
    url: str, kills: int, seed: int, report: Callable[[int], None] = lambda kills: None
) -> Verdict:
    """Kill so many workers on a migrated database. Forks: this process may have no threads."""
    return Campaign(url, seed, report).run(kills)


if __name__ == "__main__":
    _, address, number_of_kills, first_seed = sys.argv
    print(torture(address, int(number_of_kills), int(first_seed)))
