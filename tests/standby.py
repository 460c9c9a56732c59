"""A primary with a synchronous standby, which is promoted under load: nothing acknowledged is lost.

    python tests/standby.py --seconds 60 --outage 8 --seed 7

Clients trigger runs and remember those that were acknowledged; workers execute them. The primary is
killed, the standby answers read-only for a while, longer than a lease if so asked, and is promoted.
Then every acknowledged run has succeeded, and none has lost its lease.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlsplit

import psycopg

from perdure import App, Task
from perdure.core.run.lifecycle import EventType, Status
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import StorageUnavailable
from perdure.testing.postgres import PostgresUnavailable, PrivatePostgres
from waiting import MAX_WAIT_S

LEASE_TTL = timedelta(seconds=6)
DEFAULTS = Defaults(
    lease_ttl=LEASE_TTL,
    maintenance_tick=timedelta(milliseconds=200),
    poll=timedelta(milliseconds=200),
    concurrency=50,
)
CLIENTS = 3
SLOW_RUNS = 5
DATABASE = "failover"


class Standby(PrivatePostgres):
    """A copy of `primary` that follows it."""

    @classmethod
    def follow(cls, primary: PrivatePostgres) -> Standby:
        home = Path(mkdtemp(prefix="perdure-standby-")).resolve()
        standby = cls(home, primary._binaries, durable=False, temporary=True)
        standby._password = primary._password
        standby.url = (
            f"postgresql://postgres:{primary._password}@127.0.0.1:{standby._port}/postgres"
        )
        standby._primary = primary
        try:
            standby._initialise()
            standby._boot()
        except BaseException:
            standby.stop()
            raise
        return standby

    _primary: PrivatePostgres

    def _initialise(self) -> None:
        from perdure.testing.postgres import _give

        if self._account:
            _give(self.directory, self._account)
        source = f"{self._primary.url}?application_name=standby"
        options = ["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]
        copying = self._spawn("pg_basebackup", "-d", source, "-D", str(self._data), *options)
        if copying.wait(MAX_WAIT_S) != 0:
            raise PostgresUnavailable(f"pg_basebackup failed:\n{self._end_of_log()}")

    def _ready(self) -> bool:
        with suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            is_ready = len(lines) >= 8 and lines[7].strip() in ("ready", "standby")
            return is_ready and lines[0] == str(self.pid)
        return False

    def promote(self) -> None:
        execute(self.url, "SELECT pg_promote(wait => true)")


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def pair() -> Iterator[tuple[PrivatePostgres, Standby]]:
    """A primary whose commits wait for its standby."""
    with PrivatePostgres.start() as primary, Standby.follow(primary) as standby:
        execute(primary.url, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        execute(primary.url, "SELECT pg_reload_conf()")
        yield primary, standby


def url_of_both(primary: PrivatePostgres, standby: Standby, attributes: str) -> str:
    first, second = urlsplit(primary.url), urlsplit(standby.url)
    hosts = f"{first.netloc},{second.hostname}:{second.port}"
    return f"postgresql://{hosts}/{DATABASE}?target_session_attrs={attributes}"


@dataclass(frozen=True)
class Plan:
    """`seconds` of load, a failover in the middle; `outage`: how long nothing can be written."""

    seconds: float = 3.0
    outage: float = 1.0
    seed: int = 7
    attributes: str = "read-write"


@dataclass
class Verdict:
    acknowledged: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    unsuccessful: list[str] = field(default_factory=list)
    leases_lost: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return bool(self.acknowledged) and not self.lost + self.unsuccessful + self.leases_lost


class Load:
    """Clients that trigger until told to end, and what was acknowledged to them."""

    def __init__(self, task: Task[..., Any], chance: random.Random) -> None:
        self._task = task
        self._chance = chance
        self._ended = asyncio.Event()
        self.acknowledged: list[Any] = []
        self.refused = 0

    async def _trigger(self) -> None:
        while not self._ended.is_set():
            try:
                self.acknowledged.append(await self._task.trigger(0.0))
            except StorageUnavailable:
                self.refused += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._chance.uniform(0.005, 0.05)):
                    await self._ended.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._trigger())
            yield
            self._ended.set()


async def fail_over(plan: Plan) -> Verdict:
    with pair() as (primary, standby):
        primary.create_database(DATABASE)
        app = App(url_of_both(primary, standby, plan.attributes), defaults=DEFAULTS)

        @app.task
        async def work(seconds: float) -> None:
            await asyncio.sleep(seconds)

        storage = app.open_storage()
        await storage.migrate()
        await storage.close()
        load = Load(work, random.Random(plan.seed))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app.run_all())
            span = plan.outage + plan.seconds / 2
            load.acknowledged += [await work.trigger(span) for _ in range(SLOW_RUNS)]
            async with load.running():
                await asyncio.sleep(plan.seconds / 2)
                primary.kill()
                await asyncio.sleep(plan.outage)
                await asyncio.to_thread(standby.promote)
                await asyncio.sleep(plan.seconds / 2)
            return await _judge(app, load)


async def _judge(app: App, load: Load) -> Verdict:
    """Once every acknowledged run has ended."""
    verdict = Verdict(len(load.acknowledged), load.refused)
    for handle in load.acknowledged:
        with suppress(Exception):
            await handle.result(MAX_WAIT_S)
    found = await app.storage.get([handle.id for handle in load.acknowledged])
    for handle in load.acknowledged:
        run = found.get(handle.id)
        if run is None:
            verdict.lost.append(handle.id)
        elif run.status is not Status.SUCCEEDED:
            verdict.unsuccessful.append(f"{run.id}: {run.status}")
        elif EventType.RETRY_SCHEDULED in [it.type for it in await app.runs.events(run.id)]:
            verdict.leases_lost.append(run.id)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--outage", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--attributes", default="read-write")
    given = parser.parse_args()
    verdict = asyncio.run(fail_over(Plan(**vars(given))))
    print(verdict)
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
