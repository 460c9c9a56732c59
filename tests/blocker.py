"""Somebody who keeps rows of a PostgreSQL database locked, and sees who waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString, Self

import psycopg

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class Blocker:
    """Two connections: one holds, one looks on (inside a transaction one sees old statistics)."""

    def __init__(self, holder: Connection, watcher: Connection) -> None:
        self._holder = holder
        self._watcher = watcher

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str, *run_ids: str) -> AsyncIterator[Self]:
        """Hold these runs' rows until released, at the latest until the end of the block."""
        connect = psycopg.AsyncConnection.connect
        async with await connect(url) as holder, await connect(url, autocommit=True) as watcher:
            blocker = cls(holder, watcher)
            for run_id in run_ids:
                await blocker.lock(run_id)
            yield blocker

    async def lock(self, run_id: str) -> None:
        await self.execute("SELECT FROM perdure_runs WHERE id = %s FOR UPDATE", run_id[4:])

    async def execute(self, statement: LiteralString, *parameters: Any) -> None:
        """Run a statement in the transaction that holds the locks."""
        await self._holder.execute(statement, parameters)

    async def victim(self) -> int:
        """The process id of a backend that waits for us, once there is one."""
        mine = self._holder.info.backend_pid
        waiting = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        while True:
            found = await (await self._watcher.execute(waiting, (mine,))).fetchone()
            if found is not None:
                return int(found[0])

    async def tell(self, statement: LiteralString, *parameters: Any) -> None:
        """Run a statement by itself, beside the transaction that holds the locks."""
        await self._watcher.execute(statement, parameters)

    async def release(self) -> None:
        """Let go, and make what was done meanwhile true."""
        await self._holder.commit()
