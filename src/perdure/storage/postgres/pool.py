"""The connections of our pools, which leave it to us to say what is wrong with them.

Pools of ours have no `check=`. psycopg_pool then pauses a caller that got a dead connection for one
second before it hands out the next one, and doubles the pause each time. After a restart of the
server all idle connections are dead: behind ten of them a caller waits 1 + 2 + 4 + 8 + … seconds,
until its time is up (30 s) although the server has long been back. So a connection is checked by
its use; if that finds it dead, all idle ones are checked at once, and the call is made again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from functools import cached_property
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from perdure.storage.postgres.handler_connection import AsyncHandlerConnection, HandlerConnection
from perdure.storage.postgres.liveness import (
    CHECK_TIMEOUT,
    LimitedConnection,
    is_usable,
    is_usable_sync,
)
from perdure.storage.postgres.pipeline import Pipeline

NAME = "perdure"
"""Of every pool of ours."""


class PoolsAreQuiet(logging.Filter):
    """Drops what the driver would say about pools of ours: that the database cannot be reached we
    say ourselves, once and in our words. Pools of others say what they like."""

    def filter(self, record: logging.LogRecord) -> bool:
        told = record.args if isinstance(record.args, tuple) else ()
        return not any(_is_ours(value) for value in told)


def _is_ours(value: object) -> bool:
    return isinstance(value, OWN_CONNECTIONS) or value == NAME


class PooledConnection(LimitedConnection):
    """One of a pool of ours.

    Only `trips` prepares statements. Those that psycopg prepares for `execute` it removes after a
    rollback with DEALLOCATE ALL, and with them those of `trips`."""

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        return await super().execute(*arguments, **{"prepare": False, **options})

    @cached_property
    def trips(self) -> Pipeline:
        return Pipeline(self)


OWN_CONNECTIONS = (PooledConnection, HandlerConnection, AsyncHandlerConnection)


def remembering(refused: list[psycopg.Error]) -> type[PooledConnection]:
    """Connections that leave behind why the last one could not be made: the pool only says that
    it took too long."""

    class Remembering(PooledConnection):
        @classmethod
        async def connect(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                connection = await super().connect(*args, **kwargs)
            except psycopg.Error as error:
                refused[:] = [error]
                raise
            refused.clear()
            return connection

    return Remembering


class PoolCheck:
    """Checks the idle connections of a pool, all at once. Callers that need it at the same time
    share one check."""

    def __init__(self, pool: AsyncConnectionPool[Any], timeout: timedelta = CHECK_TIMEOUT) -> None:
        self._pool = pool
        self._timeout = timeout
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check_idle())
        await asyncio.shield(self._task)

    async def _check_idle(self) -> None:
        idle = self._pool.get_stats().get("pool_available", 0)
        await asyncio.gather(*(self._check_one() for _ in range(idle)))

    async def _check_one(self) -> None:
        try:
            connection = await self._pool.getconn(timeout=self._timeout.total_seconds())
        except (PoolTimeout, PoolClosed):
            return
        try:
            if not await is_usable(connection, self._timeout):
                await connection.close()
        finally:
            await self._pool.putconn(connection)


def check_idle_sync(pool: ConnectionPool[Any], timeout: timedelta = CHECK_TIMEOUT) -> None:
    """The same in a thread, one by one: what cannot be checked in time is closed unseen."""
    deadline = time.monotonic() + timeout.total_seconds()
    for _ in range(pool.get_stats().get("pool_available", 0)):
        try:
            connection = pool.getconn(timeout=timeout.total_seconds())
        except (PoolTimeout, PoolClosed):
            return
        try:
            left = timedelta(seconds=deadline - time.monotonic())
            if left <= timedelta(0) or not is_usable_sync(connection, left):
                connection.close()
        finally:
            pool.putconn(connection)


WHO_ANSWERS = "SELECT pg_backend_pid()"
PREPARED_AFTER = 3
"""So many times a statement is sent as it is."""


def threshold(prepare: bool | None) -> int | None:
    return None if prepare is False else PREPARED_AFTER


async def prepare_if_alone(connection: psycopg.AsyncConnection[Any]) -> None:
    """Behind a pooler in transaction mode the next statement meets another server: one that does
    not know what was prepared, or, worse, knows something else by that name. A pooler makes up
    whom it speaks for, and is known by that."""
    answer = await (await connection.execute(WHO_ANSWERS, prepare=False)).fetchone()
    _heed(connection, answer)


def prepare_if_alone_sync(connection: psycopg.Connection[Any]) -> None:
    _heed(connection, connection.execute(WHO_ANSWERS, prepare=False).fetchone())


def _heed(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], answer: Any) -> None:
    if answer != (connection.info.backend_pid,):
        connection.prepare_threshold = None


logging.getLogger("psycopg.pool").addFilter(PoolsAreQuiet())
