"""Wake-ups over LISTEN and NOTIFY.

A NOTIFY is a transaction of its own, after the one it speaks of: inside, it would cost every commit
the database-wide lock that NOTIFY takes. It may travel right behind that one, though: then nobody
waits for an answer in between. One direct connection listens. Behind a pooler that shares
connections between transactions nothing can be heard: give `listen_url`, or poll alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from perdure.storage.contract.wakeups import pack, unpack
from perdure.storage.postgres.dialect import CHANNEL, MOST_BYTES
from perdure.storage.postgres.driver import QUERIES, translation
from perdure.storage.postgres.liveness import LimitedConnection, connection_info
from perdure.storage.postgres.pipeline import Asked
from perdure.storage.postgres.pool import PooledConnection
from perdure.telemetry import table

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Borrow = Callable[[], AbstractAsyncContextManager[PooledConnection]]
OnTopics = Callable[[frozenset[str] | None], None]

CHECK_EVERY = timedelta(seconds=30)
CONNECT_TIMEOUT_S = 5
APPLICATION_NAME = "perdure hints"


def notice(topics: frozenset[str]) -> Asked:
    parts = [part.decode() for part in pack(topics, MOST_BYTES)]
    return Asked(QUERIES["notify_apart"].text, {"channel": CHANNEL, "parts": parts})


class PostgresHints:
    """Notifies through the pool (`borrow`). Without `listen_url` it listens at `url`, if that
    leads straight to the server."""

    rides = True

    def __init__(self, borrow: Borrow, url: str, listen_url: str | None) -> None:
        self._borrow = borrow
        self._url = connection_info(listen_url or url, connect_timeout=CONNECT_TIMEOUT_S)
        self._is_trusted = listen_url is not None

    async def notify(self, topics: frozenset[str]) -> None:
        async with self._borrow() as connection:
            await connection.trips.run([notice(topics)])

    async def listen(self, on_topics: OnTopics) -> None:
        """Returns, having heard nothing, where nothing can be heard."""
        try:
            connection = await self._connect()
            try:
                if self._is_trusted or await _is_direct(connection):
                    await _listen(connection, on_topics)
            finally:
                await connection.close()  # nothing to roll back, whatever it was in the middle of
        except psycopg.Error as error:
            raise translation(error) from error
        table.POOLER_IN_THE_WAY.say()

    async def _connect(self) -> Connection:
        return await LimitedConnection.connect(
            self._url, autocommit=True, prepare_threshold=None, application_name=APPLICATION_NAME
        )


async def _is_direct(connection: Connection) -> bool:
    """Poolers make up the process id that they greet a client with."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    return await cursor.fetchone() == (connection.info.backend_pid,)


async def _listen(connection: Connection, on_topics: OnTopics) -> None:
    """What comes between the answers of a command, the driver hands over; the rest we read."""
    connection.add_notify_handler(lambda heard: on_topics(unpack(heard.payload.encode())))
    await connection.execute(f"LISTEN {CHANNEL}")
    on_topics(None)
    while True:
        await _hear(connection.pgconn, on_topics, CHECK_EVERY)
        await _check(connection)


async def _hear(server: PGconn, on_topics: OnTopics, within: timedelta) -> None:
    """For so long, straight from the socket: the driver would look ten times a second whether
    somebody has interrupted it, and take its time to say what it has heard."""
    loop, sockets = asyncio.get_running_loop(), [server.socket]
    broken: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        try:
            server.consume_input()
            while heard := server.notifies():
                on_topics(unpack(heard.extra))
        except Exception as error:  # noqa: BLE001  # for whoever waits below
            stop()  # at once: libpq has closed the socket, and its number may be another's soon
            if not broken.done():
                broken.set_exception(error)

    def stop() -> None:
        while sockets:
            loop.remove_reader(sockets.pop())

    loop.add_reader(server.socket, read)
    try:
        read()  # what has come already makes no socket readable
        async with asyncio.timeout(within.total_seconds()):
            await broken
    except TimeoutError:
        pass
    finally:
        stop()


async def _check(connection: Connection) -> None:
    """A quiet connection may be a dead one: raises if it does not answer in time."""
    await connection.execute("SELECT 1")
