"""A PostgreSQL connection that breaks at the worst moment: a proxy that understands just enough.

It reads message boundaries (a type byte and a length) in both directions. Armed with a `Cut`, it
closes the next connection that commits: before COMMIT reaches the server, or once the server has
confirmed it and before the client hears of it. Armed with an error code, it answers in the
server's stead. `silence` makes the connections of that moment deliver nothing any more, although
they stay open; later ones work, unless `is_silent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

PARSE, BIND, QUERY, SYNC = b"P", b"B", b"Q", b"S"
COMMAND_COMPLETE = b"C"


class Cut(StrEnum):
    BEFORE_COMMIT = "before COMMIT reached the server"
    AFTER_COMMIT = "after COMMIT was done, before the client heard of it"


class Proxy:
    """Between a storage and its server. `url` is the way through."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._listener: asyncio.Server | None = None
        self._links: list[asyncio.Task[None]] = []
        self.cut: Cut | None = None
        self.error: str | None = None
        self.cuts = 0
        self.accepted = 0
        self.is_silent = False
        """Whether connections deliver nothing from their beginning on."""
        self._generation = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, server_url: str) -> AsyncIterator[Self]:
        proxy = cls(server_url)
        proxy._listener = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        try:
            yield proxy
        finally:
            proxy._listener.close()
            for link in proxy._links:
                link.cancel()
            await asyncio.gather(*proxy._links, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._listener is not None
        port = self._listener.sockets[0].getsockname()[1]
        account = self._server.netloc.rpartition("@")[0]
        plain = "sslmode=disable&gssencmode=disable"
        return f"postgresql://{account}@127.0.0.1:{port}{self._server.path}?{plain}"

    def silence(self) -> None:
        """Nothing that comes over the present connections is delivered from now on."""
        self._generation += 1

    def delivers(self, generation: int) -> bool:
        return generation == self._generation and not self.is_silent

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.append(task)
        self.accepted += 1
        link = _Link(self, self._generation, (reader, writer))
        link.join(await asyncio.open_connection(self._server.hostname, self._server.port))
        await link.carry()


class _Link:
    """One connection of a client, and the proxy's own to the server."""

    def __init__(
        self,
        proxy: Proxy,
        generation: int,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._generation = generation
        self._from_client, self._to_client = client
        self._prepared: dict[bytes, bytes] = {}

    def join(self, server: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._from_server, self._to_server = server

    async def carry(self) -> None:
        """Until one of the two sides, or the proxy, has had enough."""
        ways = [asyncio.create_task(self._upwards()), asyncio.create_task(self._downwards())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for writer in (self._to_client, self._to_server):
                writer.close()
            for writer in (self._to_client, self._to_server):
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def _upwards(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            size = await self._from_client.readexactly(4)
            rest = await self._from_client.readexactly(int.from_bytes(size, "big") - 4)
            self._write(self._to_server, size + rest)
            while True:
                kind, body = await _message(self._from_client)
                if self._proxy.error is not None and kind == SYNC:
                    self._answer_with_error(self._proxy.error)
                    break
                if self._proxy.cut is Cut.BEFORE_COMMIT and self._commits(kind, body):
                    self._count()
                    break
                self._commits(kind, body)
                self._write(self._to_server, _packed(kind, body))

    async def _downwards(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await _message(self._from_server)
                done = kind == COMMAND_COMPLETE and body == b"COMMIT\0"
                if done and self._proxy.cut is Cut.AFTER_COMMIT:
                    self._count()
                    break
                self._write(self._to_client, _packed(kind, body))

    def _write(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if self._proxy.delivers(self._generation):
            writer.write(message)

    def _commits(self, kind: bytes, body: bytes) -> bool:
        """Whether this message is a COMMIT, perhaps one that was prepared before."""
        if kind == PARSE:
            name, query, _ = body.split(b"\0", 2)
            self._prepared[name] = query
        if kind == BIND:
            _, name, _ = body.split(b"\0", 2)
            return self._prepared.get(name, b"").startswith(b"COMMIT")
        return kind == QUERY and body.startswith(b"COMMIT")

    def _answer_with_error(self, code: str) -> None:
        self._proxy.error = None
        self._proxy.cuts += 1
        fields = (b"SFATAL", b"VFATAL", b"C" + code.encode(), b"Mthe proxy says so")
        self._to_client.write(_packed(b"E", b"\0".join(fields) + b"\0\0"))

    def _count(self) -> None:
        self._proxy.cut = None
        self._proxy.cuts += 1


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


def _packed(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body
