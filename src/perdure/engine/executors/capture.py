"""What a command writes, kept up to a limit: how it began and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure.engine.executors.secret import Mask

LONGEST_LINE = 8 * 1024
_CHUNK = 64 * 1024


class Capture:
    """Of more than `limit` bytes the first and the last half are kept."""

    def __init__(self, limit: int) -> None:
        self._room = limit // 2
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    @property
    def is_truncated(self) -> bool:
        return self.size > self._limit

    def add(self, data: bytes) -> None:
        self.size += len(data)
        free = self._limit - self._room - len(self._head)
        self._head += data[:free]
        self._tail += data[max(free, 0) :]
        del self._tail[: max(len(self._tail) - self._room, 0)]

    def text(self, mask: Mask) -> str:
        """Without secrets, also without halves of them where it was cut."""
        if not self.is_truncated:
            return mask.text(bytes(self._head + self._tail).decode("utf-8", "replace"))
        left_out = self.size - len(self._head) - len(self._tail)
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{mask.head(head)}\n… ({left_out} bytes left out) …\n{mask.tail(tail)}"

    def shown(self, name: str, mask: Mask) -> dict[str, Any]:
        return {
            name: self.text(mask),
            f"{name}_bytes": self.size,
            f"{name}_truncated": self.is_truncated,
        }


class Lines:
    """Cuts what comes into lines, and passes each on."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = bytearray()

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._say(line)
        self._rest = rest
        if len(self._rest) > LONGEST_LINE:
            self.end()

    def end(self) -> None:
        if self._rest:
            self._say(self._rest)
        self._rest = bytearray()

    def _say(self, line: bytearray) -> None:
        text = bytes(line[:LONGEST_LINE]).decode("utf-8", "replace").rstrip()
        if text:
            self._on_line(text)


async def drain(stream: asyncio.StreamReader, *sinks: Callable[[bytes], None]) -> None:
    """All of it, however much is kept: a full pipe would stop the command."""
    while data := await stream.read(_CHUNK):
        for sink in sinks:
            sink(data)
