"""A pooler like PgBouncer in transaction mode, since no wheel brings a real one.

A client keeps a server connection from the first message of a transaction until the server says
that it is idle again, and nothing the client has sent is unanswered. Connections are handed out in
turns, so that whatever relies on meeting the same one again (prepared statements, LISTEN, session
settings) fails here sooner than it would behind a real pooler.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self
from urllib.parse import urlsplit

from psycopg.pq import ConnStatus, PGconn
from psycopg.pq import abc as pq

QUERY, SYNC, FLUSH, TERMINATE = b"Q", b"S", b"H", b"X"
READY, IDLE = b"Z", b"I"
PARAMETERS = (b"server_version", b"server_encoding", b"client_encoding", b"DateStyle",
              b"TimeZone", b"integer_datetimes", b"standard_conforming_strings")  # fmt: skip

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPooler:
    """Between clients and `size` connections to one database. `url` is the way through."""

    def __init__(self, server_url: str, size: int) -> None:
        self._server_url = server_url
        self._size = size
        self._idle: asyncio.Queue[Streams] = asyncio.Queue()
        self._logins: list[pq.PGconn] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._listener: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self.transactions = 0
        self.most_connections_of_a_client = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, server_url: str, size: int = 3) -> AsyncIterator[Self]:
        pooler = cls(server_url, size)
        for _ in range(size):
            pooler._idle.put_nowait(await pooler._log_in())
        pooler._listener = await asyncio.start_server(pooler._accept, "127.0.0.1", 0)
        try:
            yield pooler
        finally:
            await pooler._close()

    @property
    def url(self) -> str:
        assert self._listener is not None
        port = self._listener.sockets[0].getsockname()[1]
        parts = urlsplit(self._server_url)
        account = parts.netloc.rpartition("@")[0]
        plain = "sslmode=disable&gssencmode=disable"
        return f"postgresql://{account}@127.0.0.1:{port}{parts.path}?{plain}"

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._clients:
            await asyncio.wait(self._clients, timeout=5)  # most have closed their side by now
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for writer in self._writers:
            await _close(writer)
        for login in self._logins:
            login.finish()

    async def _log_in(self) -> Streams:
        """libpq does the talking; then its socket is ours."""
        login = PGconn.connect(self._server_url.encode())
        assert login.status == ConnStatus.OK, login.error_message
        self._logins.append(login)
        server = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(login.socket)))
        self._writers.append(server[1])
        return server

    async def borrow(self) -> Streams:
        self.transactions += 1
        return await self._idle.get()

    def give_back(self, server: Streams) -> None:
        self._idle.put_nowait(server)

    async def replace(self, server: Streams) -> None:
        """A client left in the middle of a transaction."""
        await _close(server[1])
        self.give_back(await self._log_in())

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self, reader, writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._greet(reader, writer)
                await client.serve()
        finally:
            await client.leave()
            used = len(client.connections)
            self.most_connections_of_a_client = max(self.most_connections_of_a_client, used)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size - 4)
        writer.write(_packed(b"R", bytes(4)))
        for name in PARAMETERS:
            value = self._logins[0].parameter_status(name) or b""
            writer.write(_packed(b"S", name + b"\0" + value + b"\0"))
        writer.write(_packed(b"K", b"\x7f\0\0\1" + bytes(4)))  # made up, as poolers do
        writer.write(_packed(READY, IDLE))


class _Client:
    """One client, and the server connection it has for now."""

    def __init__(
        self,
        pooler: TransactionPooler,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.connections: set[asyncio.StreamWriter] = set()
        self._pooler = pooler
        self._reader = reader
        self._writer = writer
        self._server: Streams | None = None
        self._answers: asyncio.Task[None] | None = None
        self._unanswered = 0
        self._is_mid_batch = False

    async def serve(self) -> None:
        while True:
            kind, body = await _message(self._reader)
            if kind == TERMINATE:
                return
            if kind == FLUSH and not self._is_mid_batch:
                continue  # libpq flushes even after a Sync, when there is nothing to flush
            if self._server is None:
                self._server = await self._pooler.borrow()
                self.connections.add(self._server[1])
                self._answers = asyncio.create_task(self._carry_answers(self._server))
            self._unanswered += kind in (QUERY, SYNC)
            self._is_mid_batch = kind not in (QUERY, SYNC)
            self._server[1].write(_packed(kind, body))

    async def _carry_answers(self, server: Streams) -> None:
        while True:
            kind, body = await _message(server[0])
            self._writer.write(_packed(kind, body))
            self._unanswered -= kind == READY
            is_over = kind == READY and body == IDLE and not self._unanswered
            if is_over and not self._is_mid_batch:
                self._server = None
                self._pooler.give_back(server)
                return

    async def leave(self) -> None:
        if self._answers is not None:
            self._answers.cancel()
            await asyncio.gather(self._answers, return_exceptions=True)
        if self._server is not None:
            await self._pooler.replace(self._server)
        await _close(self._writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


def _packed(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body
