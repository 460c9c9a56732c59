"""A proxy in front of a server that breaks a connection at the worst moment of one request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Moment(StrEnum):
    BEFORE = "before the request reached the server"
    AFTER = "after the server answered, before the client heard of it"


class CuttingProxy:
    """Armed with an operation and a moment, it closes the connection of the next such request."""

    def __init__(self, address: str) -> None:
        self._server = urlsplit(address)
        self._armed: list[tuple[bytes, Moment]] = []
        self._links: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def before(cls, address: str) -> AsyncIterator[Self]:
        proxy = cls(address)
        listener = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        proxy.address = f"http://127.0.0.1:{port}{proxy._server.path}"
        try:
            yield proxy
        finally:
            listener.close()
            for link in proxy._links:
                link.cancel()
            await asyncio.gather(*proxy._links, return_exceptions=True)

    def arm(self, operation: str, moment: Moment, times: int = 1) -> None:
        self._armed += [(f"/v1/worker/{operation} ".encode(), moment)] * times

    def _armed_for(self, head: bytes) -> Moment | None:
        for armed in self._armed:
            if armed[0] in head.split(b"\r\n", 1)[0]:
                self._armed.remove(armed)
                self.cuts += 1
                return armed[1]
        return None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        there = await asyncio.open_connection(self._server.hostname, self._server.port)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._exchange(reader, writer, *there):
                    pass
        finally:
            self._links.discard(task)
            for each in (writer, there[1]):
                each.transport.abort()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer. Return whether the connection goes on."""
        request = await _message(reader)
        moment = self._armed_for(request)
        if moment is Moment.BEFORE:
            return False
        server.write(request)
        answer = await _message(answers)
        if moment is Moment.AFTER:
            return False
        writer.write(answer)
        await writer.drain()
        return True


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head + await reader.readexactly(int(length[1]) if length else 0)
