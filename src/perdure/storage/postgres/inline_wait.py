"""Waiting for PostgreSQL where one thread does everything: under the testing kit.

Every statement is waited for at once, without a loop, so that nothing else happens meanwhile and
the order of events depends on nothing but the code. One wait cannot end that way: for a lock that
the transaction of another handler holds, since that handler cannot go on. The server tells which
session waits for which. An `async def` handler then waits on the loop until a transaction ends;
anything else is refused, because it would wait forever.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn
from psycopg.waiting import Ready, Wait

from perdure.errors import StorageRefused

T = TypeVar("T")

BLOCKER_CHECK_DELAY_S = 0.05
"""Seconds without an answer after which the server is asked what the session waits for."""
MAX_LOCK_CHECKS = 200
"""Checks that find a lock of a foreign session before an `async def` handler's statement fails."""
CANCEL_TIMEOUT_S = 10.0
END_TIMEOUT_MS = 10_000

_BLOCKERS = "SELECT unnest(pg_blocking_pids(%s))"
_END = "SELECT pg_terminate_backend(%s, %s)"


class Exchange(Generic[T]):
    """One of psycopg's exchanges with the server. It can be left and taken up again."""

    value: T

    def __init__(self, generator: PQGen[T], descriptor: int) -> None:
        self._generator = generator
        self._descriptor = descriptor
        self._wanted: Wait | None = None

    def run(self, seconds: float) -> bool:
        """Return whether it has ended; if not, the server has been silent for so long."""
        try:
            if self._wanted is None:
                self._wanted = next(self._generator)
            while True:
                ready = self._poll(self._wanted, seconds)
                self._wanted = self._generator.send(ready)
                if not ready:
                    return False
        except StopIteration as stop:
            self.value = stop.value
            return True

    def _poll(self, wanted: Wait, seconds: float) -> Ready:
        events = EVENT_READ if wanted & Wait.R else 0
        events |= EVENT_WRITE if wanted & Wait.W else 0
        with DefaultSelector() as selector:
            selector.register(self._descriptor, events)
            found = selector.select(seconds)
        happened = found[0][1] if found else 0
        ready = int(Ready.R) if happened & EVENT_READ else 0
        ready |= int(Ready.W) if happened & EVENT_WRITE else 0
        return Ready(ready)


class Sessions:
    """The sessions of one database that this thread drives, and what they wait for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._observer: psycopg.Connection[tuple[Any, ...]] | None = None
        self.transactions: set[int] = set()
        """The sessions in which a handler's transaction is open, by their process ids."""
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def wait(self, generator: PQGen[T], server: PGconn) -> T:
        """Raise StorageRefused if it would wait for a transaction of this thread."""
        exchange = Exchange(generator, server.socket)
        while not exchange.run(BLOCKER_CHECK_DELAY_S):
            if self._is_held_up(server.backend_pid):
                self._cancel(exchange, server)
                raise StorageRefused(
                    "PostgreSQL: the statement waits for a lock that the ctx.transaction() of an "
                    "`async def` handler holds; under the testing kit that handler cannot go on "
                    "meanwhile, so the wait would never end"
                )
        return exchange.value

    async def wait_async(self, generator: PQGen[T], server: PGconn) -> T:
        """The same for an `async def` handler, which lets the others go on.

        The server's `lock_timeout` is off for these sessions: it would count the real time that
        other handlers take, which says nothing about virtual time.
        """
        exchange = Exchange(generator, server.socket)
        was_silent = False
        lock_checks = 0
        try:
            while not exchange.run(BLOCKER_CHECK_DELAY_S):
                was_silent = True
                if self._is_held_up(server.backend_pid):
                    await self._until_another_ends(server.backend_pid)
                elif self._blockers(server.backend_pid) - self.transactions:
                    lock_checks += 1
                    if lock_checks == MAX_LOCK_CHECKS:
                        self._cancel(exchange, server)
                        raise psycopg.errors.LockNotAvailable(
                            "the statement waits for a lock that a session of the test holds"
                        )
        except (asyncio.CancelledError, GeneratorExit):
            self._cancel(exchange, server)
            raise
        if was_silent:
            self.wake()
        return exchange.value

    def end(self, server: PGconn) -> None:
        """End a session and its transaction, wherever it is. Its locks are free afterwards."""
        process_id = server.backend_pid
        server.finish()
        with suppress(psycopg.Error):
            self._observe(_END, process_id, END_TIMEOUT_MS)
        self.forget(process_id)

    def forget(self, process_id: int) -> None:
        """The transaction in this session is over."""
        self.transactions.discard(process_id)
        self.wake()

    def wake(self) -> None:
        """Let those that wait for a lock look whether they have it."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def _cancel(self, exchange: Exchange[Any], server: PGconn) -> None:
        """Take the statement back. Its transaction stays, to be rolled back."""
        server.get_cancel().cancel()
        with suppress(psycopg.errors.QueryCanceled):
            if not exchange.run(CANCEL_TIMEOUT_S):
                self.end(server)

    def _is_held_up(self, process_id: int) -> bool:
        """Return whether it waits, directly or through others, for an open transaction that can go
        on. If there is none, it is a deadlock, which the server ends by itself.

        A session can go on once it was woken, also if the loop has not resumed it yet. So can one
        that the server has given its lock since it began to wait: when a transaction ends, the
        server does not keep the order in which others asked for the row. That session is woken.
        """
        seen = {process_id}
        left = self._blockers(process_id) & self.transactions
        while left := left - seen:
            blocker = left.pop()
            seen.add(blocker)
            if not self._is_asleep(blocker):
                return True
            further = self._blockers(blocker)
            if not further:
                self.wake()
                return True
            left |= further & self.transactions
        return False

    def _is_asleep(self, process_id: int) -> bool:
        future = self._waiting.get(process_id)
        return future is not None and not future.done()

    def _blockers(self, process_id: int) -> set[int]:
        return {int(row[0]) for row in self._observe(_BLOCKERS, process_id)}

    async def _until_another_ends(self, process_id: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[process_id] = future
        try:
            await future
        finally:
            del self._waiting[process_id]

    def _observe(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if self._observer is None or self._observer.closed:
            self._observer = psycopg.connect(self._url, autocommit=True)
        return self._observer.execute(statement.encode(), parameters).fetchall()
