"""Pools of connections for handlers: one on their loop, one for their threads.

Slots are handed out first: a caller that has one always finds room in the pool, and then waits for
nothing but the server. So "all are in use" and "the server cannot be reached" are told apart, and
the pool can be asked in short turns: its own tries to connect are further and further apart.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from perdure.errors import StorageUnavailable
from perdure.storage.postgres.handler_connection import AsyncHandlerConnection, HandlerConnection
from perdure.storage.postgres.pool import PoolCheck, check_idle_sync

POOL_TIMEOUT = timedelta(seconds=30)
"""How long a handler waits for a slot, and then for the server."""


class AsyncHandlerPool:
    """On the handlers' loop."""

    def __init__(self, size: int, options: dict[str, Any], timeout: timedelta) -> None:
        self._refused: list[psycopg.Error] = []
        self._pool: AsyncConnectionPool[AsyncHandlerConnection] = AsyncConnectionPool(
            connection_class=_remember_async(self._refused), max_size=size, **options
        )
        self._slots = asyncio.Semaphore(size)
        self._check = PoolCheck(self._pool)
        self._timeout = timeout

    async def acquire(self) -> AsyncHandlerConnection:
        """A connection, alive or not. Raises StorageUnavailable."""
        limit = POOL_TIMEOUT.total_seconds()
        try:
            async with asyncio.timeout(limit):
                await self._slots.acquire()
        except TimeoutError as error:
            raise _all_in_use(POOL_TIMEOUT) from error
        try:
            return await self._connect(time.monotonic() + limit)
        except BaseException:
            self._slots.release()
            raise

    async def _connect(self, deadline: float) -> AsyncHandlerConnection:
        while True:
            try:
                if self._pool.closed:
                    await self._pool.open()
                return await self._pool.getconn(timeout=self._timeout.total_seconds())
            except PoolClosed as error:
                raise _unreachable(error, self._refused) from error
            except PoolTimeout as error:
                if time.monotonic() >= deadline:
                    raise _unreachable(error, self._refused) from error

    async def release(self, connection: AsyncHandlerConnection) -> None:
        try:
            await self._pool.putconn(connection)
        finally:
            self._slots.release()

    async def check(self) -> None:
        """Close the idle connections that are dead."""
        await self._check.run()

    async def close(self) -> None:
        await self._pool.close()


class HandlerPool:
    """For handlers in threads."""

    def __init__(self, size: int, options: dict[str, Any], timeout: timedelta) -> None:
        self._refused: list[psycopg.Error] = []
        self._pool: ConnectionPool[HandlerConnection] = ConnectionPool(
            connection_class=_remember(self._refused), max_size=size, **options
        )
        self._slots = threading.Semaphore(size)
        self._timeout = timeout

    def acquire(self) -> HandlerConnection:
        """A connection, alive or not. Raises StorageUnavailable."""
        limit = POOL_TIMEOUT.total_seconds()
        if not self._slots.acquire(timeout=limit):
            raise _all_in_use(POOL_TIMEOUT)
        try:
            return self._connect(time.monotonic() + limit)
        except BaseException:
            self._slots.release()
            raise

    def _connect(self, deadline: float) -> HandlerConnection:
        while True:
            try:
                if self._pool.closed:
                    self._pool.open()
                return self._pool.getconn(timeout=self._timeout.total_seconds())
            except PoolClosed as error:
                raise _unreachable(error, self._refused) from error
            except PoolTimeout as error:
                if time.monotonic() >= deadline:
                    raise _unreachable(error, self._refused) from error

    def release(self, connection: HandlerConnection) -> None:
        try:
            self._pool.putconn(connection)
        finally:
            self._slots.release()

    def check(self) -> None:
        """Close the idle connections that are dead."""
        check_idle_sync(self._pool)

    def close(self) -> None:
        self._pool.close()


def _remember_async(refused: list[psycopg.Error]) -> type[AsyncHandlerConnection]:
    """Connections that leave behind why the last one could not be made."""

    class Remembering(AsyncHandlerConnection):
        @classmethod
        async def connect(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super().connect(*args, **kwargs)
            except psycopg.Error as error:
                refused[:] = [error]
                raise

    return Remembering


def _remember(refused: list[psycopg.Error]) -> type[HandlerConnection]:
    class Remembering(HandlerConnection):
        @classmethod
        def connect(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().connect(*args, **kwargs)
            except psycopg.Error as error:
                refused[:] = [error]
                raise

    return Remembering


def _all_in_use(timeout: timedelta) -> StorageUnavailable:
    problem = f"all were in use for {timeout.total_seconds():g} s"
    advice = "allow more `transaction_connections`, or keep transactions shorter"
    return StorageUnavailable(f"PostgreSQL: no connection for the transaction: {problem}; {advice}")


def _unreachable(error: Exception, refused: list[psycopg.Error]) -> StorageUnavailable:
    reason = str(refused[0]).strip() if refused else error
    return StorageUnavailable(f"PostgreSQL: no connection for the transaction: {reason}")
