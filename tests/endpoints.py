"""Somebody else's web server, on loopback, as well or as badly behaved as a test wants."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from waiting import MAX_WAIT_S


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Behave = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class Endpoint:
    """`async with Endpoint(answering(…)) as endpoint:`; `asked` holds what came, and `left` is set
    once the other side has closed a connection."""

    def __init__(self, behave: Behave | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.behave = behave or answering()
        self.asked: list[Asked] = []
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self._tls = tls

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hook"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _read(reader)
            self.asked.append(asked)
            self.came.set()
            watching = asyncio.ensure_future(self._watch(reader))
            try:
                await self.behave(asked, writer)
                await writer.drain()
            finally:
                writer.close()
                watching.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        try:
            await reader.read()
        finally:
            self.left.set()

    async def abandoned(self) -> None:
        """Until the other side has gone."""
        await asyncio.wait_for(self.left.wait(), MAX_WAIT_S)


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


def answering(
    status: int = 200, body: Any = None, *, raw: bytes | None = None, **headers: str
) -> Behave:
    """The same answer to everybody: `body` as JSON, or `raw` as it is."""
    content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if raw is None and body is not None:
        named.setdefault("content-type", "application/json")

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in named.items())]
        head = "\r\n".join([*lines, f"content-length: {len(content)}", "", ""])
        writer.write(head.encode("latin-1") + content)

    return answer


def saying(data: bytes) -> Behave:
    """These bytes, and the end."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


def echo(asked: Asked, writer: asyncio.StreamWriter) -> Awaitable[None]:
    """Whatever was asked, headers and all, as JSON."""
    return answering(200, {"headers": asked.headers, "body": asked.json})(asked, writer)


class Silence:
    """No answer until `over` is set."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await self.over.wait()


class Endless:
    """A body that never ends: `chunk` every `pause` seconds, or as fast as it can be sent."""

    def __init__(self, chunk: bytes, pause: float = 0.0) -> None:
        self._chunk = chunk
        self._pause = pause
        self.sent = 0

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while not writer.is_closing():
            writer.write(self._chunk)
            self.sent += len(self._chunk)
            await writer.drain()
            await asyncio.sleep(self._pause)
