"""A bell between a test and its handlers, wherever they run: no test has to sleep or to look.

A handler rings, in whatever thread or process it is; the test hears it, and may let go of a
handler that waits at the door.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from waiting import MAX_WAIT_S


def ring(path: str, word: str = "") -> None:
    """Say one word."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(f"{word}\n".encode())


def wait_at(path: str, word: str = "") -> None:
    """Say one word, and wait in a C call until the test lets go."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(f"{word}\n".encode())
        line.recv(1)


def wait_for_word(path: str, word: str = "") -> str:
    """Say one word, and wait for the one that the test answers."""
    with socket.socket(socket.AF_UNIX) as line, line.makefile() as answer:
        line.connect(path)
        line.sendall(f"{word}\n".encode())
        return answer.readline().strip()


class Caller:
    """Somebody who rang."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.word = ""

    async def listen(self) -> Self:
        self.word = (await self._reader.readline()).decode().strip()
        return self

    def let_go(self) -> None:
        self.writer.close()

    def answer(self, word: str) -> None:
        self.writer.write(f"{word}\n".encode())

    async def gone(self) -> None:
        """Until the other side has hung up, or died."""
        await self._reader.read()
        self.writer.close()


class Bell:
    """`async with Bell(path) as bell`; one test's."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._callers: asyncio.Queue[Caller] = asyncio.Queue()
        self._all: list[Caller] = []

    async def heard(self) -> Caller:
        """The next one who rings."""
        async with asyncio.timeout(MAX_WAIT_S):
            return await self._callers.get()

    async def word(self) -> str:
        caller = await self.heard()
        caller.let_go()
        return caller.word

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._on_call, self.path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for caller in self._all:
            caller.let_go()
        self._server.close()
        await self._server.wait_closed()

    async def _on_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(reader, writer)
        self._all.append(caller)
        self._callers.put_nowait(await caller.listen())
