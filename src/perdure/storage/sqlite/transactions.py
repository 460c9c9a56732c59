"""Transactions for handlers on SQLite. Each holds the file's only write lock, so it is held for a
limited time, and whoever waits for it in this process waits in line with our own writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

from perdure.errors import StorageRefused, StorageUnavailable, TransactionError
from perdure.storage.contract.transactions import AnswerLost
from perdure.storage.sql.statements import Operation
from perdure.storage.sqlite.connection import Connection, SqliteDialect, translated
from perdure.storage.sqlite.handler_connection import AsyncConnection, HandlerConnection

T = TypeVar("T")
Connect = Callable[..., Connection]

PATIENCE = timedelta(seconds=60)
"""How long a handler waits for the write lock."""
LOOK_EVERY = timedelta(milliseconds=100)
"""How often it looks meanwhile whether it is still wanted."""

_TOO_LONG = (
    "ctx.transaction() was open for more than %s and was rolled back: on SQLite nobody else can "
    "write meanwhile, and leases could not be renewed. Do slow work before it, or use PostgreSQL"
)

_held: ContextVar[Held] = ContextVar("perdure_sqlite_transaction")


def refuse_to_wait_for_oneself() -> None:
    """For our writer: a handler that holds the write lock must not wait for it."""
    held = _held.get(None)
    if held is not None and not held.is_over:
        raise StorageRefused(
            "SQLite: this handler's ctx.transaction() holds the only write lock, and what it asks "
            "for needs that too; trigger runs inside it, and do the rest before or after"
        )


class SqliteTransactions:
    """`lock` is our own writer's."""

    dialect = SqliteDialect()

    def __init__(self, connect: Connect, lock: threading.Lock) -> None:
        self._connect = connect
        self._lock = lock

    async def begin(self, limit: timedelta) -> AsyncTransaction:
        thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-transaction")
        unwanted = threading.Event()
        waiting = thread.submit(self._take, limit, unwanted)
        try:
            held = await asyncio.wrap_future(waiting)
        except BaseException:
            unwanted.set()
            waiting.add_done_callback(_give_back)
            thread.shutdown(wait=False)
            raise
        _held.set(held)
        return AsyncTransaction(held, thread)

    def begin_sync(self, limit: timedelta) -> SyncTransaction:
        held = self._take(limit, threading.Event())
        _held.set(held)
        return SyncTransaction(held)

    async def close(self) -> None:
        """Nothing stays open here."""

    def _take(self, limit: timedelta, unwanted: threading.Event) -> Held:
        looks = int(PATIENCE / LOOK_EVERY)
        for _ in range(looks):
            if unwanted.is_set():
                raise TransactionError("nobody waits for the transaction any more")
            if self._lock.acquire(timeout=LOOK_EVERY.total_seconds()):
                break
        else:
            raise StorageUnavailable(f"SQLite: the file was busy for {PATIENCE}")
        try:
            return Held(self._begun(looks, unwanted), self._lock, limit)
        except BaseException:
            self._lock.release()
            raise

    def _begun(self, looks: int, unwanted: threading.Event) -> Connection:
        connection = self._connect(busy_timeout=LOOK_EVERY, factory=HandlerConnection)
        for look in range(looks):
            try:
                connection.statement("begin")
                return connection
            except StorageUnavailable:
                if look == looks - 1 or unwanted.is_set():
                    connection.close()
                    raise
        raise AssertionError("there was no look at all")


class Held:
    """The write lock, and a connection that has it. Of those who end it the first one does."""

    def __init__(self, connection: Connection, lock: threading.Lock, limit: timedelta) -> None:
        assert isinstance(connection.raw, HandlerConnection)
        self.raw = connection.raw
        self.problem: TransactionError | None = None
        self.is_over = False
        self._connection = connection
        self._lock = lock
        self._limit = limit
        self._ending = threading.Lock()
        self._timer = threading.Timer(limit.total_seconds(), self._expire)
        self._timer.daemon = True
        self._timer.start()
        self.raw.hand_over()

    def run(self, operation: Operation[T]) -> T:
        if self.problem is not None:
            raise self.problem
        return self._connection.run(operation)

    def conclude(self, operation: Operation[T]) -> T:
        self._timer.cancel()
        with self._ending:
            if self.problem is not None:
                raise self.problem
            try:
                self.raw.take_back()
                value = self._connection.run(operation)
                self._connection.statement("commit")
            except BaseException as error:
                is_open = self.raw.in_transaction
                self._end()
                if not is_open and isinstance(error, StorageUnavailable):
                    raise AnswerLost(str(error)) from error
                raise
            self._end()
        return value

    def rollback(self) -> None:
        self._timer.cancel()
        with self._ending:
            self._end()

    def _expire(self) -> None:
        if not self._ending.acquire(blocking=False):
            return  # somebody is just ending it
        try:
            if not self.is_over:
                self.problem = self.raw.problem = TransactionError(_TOO_LONG % self._limit)
                self._end()
        finally:
            self._ending.release()

    def _end(self) -> None:
        """Without effect on what has been committed."""
        if self.is_over:
            return
        self.is_over = True
        try:
            with translated():
                self.raw.end()
        finally:
            self._lock.release()


class SyncTransaction:
    """For a handler in a thread. Nothing here waits for a loop: see `steps.at_once`."""

    is_lost = False

    def __init__(self, held: Held) -> None:
        self._held = held
        self.connection = held.raw

    @property
    def problem(self) -> TransactionError | None:
        return self._held.problem

    async def run(self, operation: Operation[T]) -> T:
        return self._held.run(operation)

    async def conclude(self, operation: Operation[T]) -> T:
        return self._held.conclude(operation)

    async def rollback(self) -> None:
        self._held.rollback()


class AsyncTransaction:
    """For a handler on the loop: everything happens on the transaction's own thread."""

    is_lost = False

    def __init__(self, held: Held, thread: ThreadPoolExecutor) -> None:
        self._held = held
        self._thread = thread
        self.connection = AsyncConnection(held.raw, self._call)

    @property
    def problem(self) -> TransactionError | None:
        return self._held.problem

    async def run(self, operation: Operation[T]) -> T:
        return await self._call(lambda: self._held.run(operation))

    async def conclude(self, operation: Operation[T]) -> T:
        try:
            return await self._call(lambda: self._held.conclude(operation))
        finally:
            self._thread.shutdown(wait=False)

    async def rollback(self) -> None:
        try:
            await self._call(self._held.rollback)
        finally:
            self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(function))


def _give_back(waiting: Future[Held]) -> None:
    """Nobody wants it any more."""
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().rollback()
