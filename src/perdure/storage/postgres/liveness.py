"""How soon a connection to PostgreSQL counts as dead, and what follows from that.

Three layers, because each sees what the others cannot:

- The kernel ends a connection whose peer is gone: keepalives and `tcp_user_timeout`.
- A deadline for each round trip ends a connection that is silent although the kernel thinks well
  of it, e.g. behind a proxy that acknowledges and delivers nothing.
- A session that has become read-only (SQLSTATE 25006: a failover, or
  `default_transaction_read_only`) is closed: a new one may reach the primary.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from math import ceil
from typing import Any, TypeVar

import psycopg
from psycopg import generators, pq, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn

T = TypeVar("T")

ANSWER_TIMEOUT = timedelta(seconds=5)
"""How long one round trip may take."""
LONG_ANSWER_TIMEOUT = timedelta(seconds=30)
"""How long it may take for a call that reads or deletes much."""
MIGRATION_TIMEOUT = timedelta(hours=1)
CALL_TIMEOUT = timedelta(seconds=5)
"""How long a call is tried again. The second try is made in any case, so that one silent
connection does not fail the call."""
CHECK_TIMEOUT = timedelta(seconds=1)
"""How long all connections of a pool together may take to answer a check."""
CANCEL_TIMEOUT_S = 1.0
WAIT_INTERVAL_S = 0.1
"""How often psycopg looks whether a round trip takes too long."""

_READ_ONLY = "25006"
_CHECK = b"SELECT current_setting('transaction_read_only') = 'off'"

_PARAMETERS: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}
"""libpq's words; `tcp_user_timeout` in milliseconds, the others in seconds."""


class ConnectionSilent(psycopg.OperationalError):
    """No answer came in time. The connection cannot be used any more."""


def connection_info(url: str, **defaults: Any) -> str:
    """`url` with the parameters that every connection of ours has. What the URL says stands."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        return url  # connecting will say what is wrong with it
    missing = (_PARAMETERS | defaults).items()
    return make_conninfo(url, **{name: value for name, value in missing if name not in given})


def connect_timeout_s(timeout: timedelta) -> int:
    """libpq's parameter: whole seconds, and at least two."""
    return max(ceil(timeout.total_seconds()), 2)


def is_read_only(error: psycopg.Error) -> bool:
    """Return whether the session cannot write, and another one may."""
    return error.sqlstate == _READ_ONLY


def limit_wait(generator: PQGen[T], timeout: timedelta) -> PQGen[T]:
    """Run psycopg's `generator`; raise ConnectionSilent if it takes longer than `timeout`.

    psycopg resumes it every tenth of a second with nothing ready. Only such a moment counts, so a
    process that was stopped meanwhile, or whose loop was busy, still reads an answer that has come.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    try:
        state = next(generator)
        while True:
            ready = yield state
            if not ready and time.monotonic() >= deadline:
                raise ConnectionSilent(f"no answer within {timeout.total_seconds():g} s")
            state = generator.send(ready)
    except StopIteration as stop:
        value: T = stop.value
        return value


class LimitedConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection whose round trips take no longer than `answer_timeout`."""

    answer_timeout = ANSWER_TIMEOUT

    async def wait(self, gen: PQGen[T], *_: Any, **__: Any) -> T:
        """psycopg would take up to ten seconds to be cancelled; whatever interrupts a round trip
        of ours costs the connection, and the server gets a moment to hear of it."""
        try:
            limited = limit_wait(gen, self.answer_timeout)
            return await waiting.wait_async(limited, self.pgconn.socket, interval=WAIT_INTERVAL_S)
        except ConnectionSilent:
            self.pgconn.finish()
            raise
        except (asyncio.CancelledError, KeyboardInterrupt):
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        """Ask the server to end the statement, so that it releases its locks."""
        try:
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=CANCEL_TIMEOUT_S)
        finally:
            self.pgconn.finish()


async def require_answer(connection: LimitedConnection, within: timedelta) -> None:
    """Raise ConnectionSilent unless the server answers in time. To be called before a statement
    that may take long: until it answers, a silent connection looks like a busy server."""
    usual, connection.answer_timeout = connection.answer_timeout, within
    try:
        await connection.execute("SELECT 1", prepare=False)
    finally:
        connection.answer_timeout = usual


async def is_usable(connection: psycopg.AsyncConnection[Any], within: timedelta) -> bool:
    """Return whether the server answers in time, and lets this session write."""
    try:
        limited = limit_wait(_ask(connection.pgconn), within)
        return await waiting.wait_async(limited, connection.pgconn.socket, interval=WAIT_INTERVAL_S)
    except (psycopg.Error, OSError):
        return False


def is_usable_sync(connection: psycopg.Connection[Any], within: timedelta) -> bool:
    """The same, in a thread."""
    try:
        limited = limit_wait(_ask(connection.pgconn), within)
        return waiting.wait(limited, connection.pgconn.socket, interval=WAIT_INTERVAL_S)
    except (psycopg.Error, OSError):
        return False


def _ask(server: PGconn) -> PQGen[bool]:
    """Straight through libpq: a cursor would count the statement, to prepare it."""
    server.send_query(_CHECK)
    [answer] = yield from generators.execute(server)
    return bool(answer.status == pq.ExecStatus.TUPLES_OK and answer.get_value(0, 0) == b"t")
