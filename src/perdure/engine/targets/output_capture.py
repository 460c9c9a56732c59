"""What a command writes, kept up to a limit: how it began and how it ended."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import Any

from perdure.telemetry.redactor import OVERLAP_CHARS, Cleaner
from perdure.telemetry.secret_texts import PrivateKeyLines

LONGEST_LINE = 8 * 1024
_CHUNK = 64 * 1024
_MAX_LINE_READ = LONGEST_LINE + OVERLAP_CHARS
_CONTINUATION = bytes(range(0x80, 0xC0))


class Capture:
    """Of more than `limit` bytes the first and the last half are kept, and a little more of each,
    to recognise a secret that the cut would divide."""

    def __init__(self, limit: int) -> None:
        self._tail_limit = limit // 2
        self._head_limit = limit - limit // 2
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    @property
    def is_truncated(self) -> bool:
        return self.size > self._limit

    def add(self, data: bytes) -> None:
        self.size += len(data)
        free = self._head_limit + OVERLAP_CHARS - len(self._head)
        self._head += data[:free]
        self._tail += data[max(free, 0) :]
        del self._tail[: max(len(self._tail) - self._tail_limit - OVERLAP_CHARS, 0)]

    def text(self, cleaner: Cleaner) -> str:
        """Without secrets, also without halves of them where it was cut."""
        if self.size == len(self._head) + len(self._tail):
            head = tail = cleaner.text(_decode(self._head + self._tail))
        else:
            head = cleaner.head(decode_beginning(self._head))
            tail = cleaner.tail(_decode(self._tail.lstrip(_CONTINUATION)))
        if not self.is_truncated:
            return head
        first = head.encode()[: self._head_limit]
        last = tail.encode()[-self._tail_limit :].lstrip(_CONTINUATION) if self._tail_limit else b""
        left_out = self.size - self._limit
        return f"{decode_beginning(first)}\n… ({left_out} bytes left out) …\n{_decode(last)}"

    def shown(self, name: str, cleaner: Cleaner) -> dict[str, Any]:
        return {
            name: self.text(cleaner),
            f"{name}_bytes": self.size,
            f"{name}_truncated": self.is_truncated,
        }


class Lines:
    """Cuts what comes into lines, and passes each on without secrets."""

    def __init__(self, on_line: Callable[[str], None], cleaner: Cleaner) -> None:
        self._on_line = on_line
        self._cleaner = cleaner
        self._keys = PrivateKeyLines()
        self._rest = bytearray()

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        self._rest = rest[: _MAX_LINE_READ + 1]

    def end(self) -> None:
        if self._rest:
            self._pass_on(self._rest)
        self._rest = bytearray()

    def _pass_on(self, line: bytearray) -> None:
        text = decode_beginning(line[:_MAX_LINE_READ]).rstrip()
        if not text or self._keys.is_inside(text):
            return
        is_cut = len(line) > _MAX_LINE_READ
        self._on_line(
            (self._cleaner.head(text) if is_cut else self._cleaner.text(text))[:LONGEST_LINE]
        )


def _decode(data: bytes | bytearray) -> str:
    return bytes(data).decode("utf-8", "replace")


def decode_beginning(data: bytes | bytearray) -> str:
    """Without the first bytes of a character that was cut."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(data))


async def drain(stream: asyncio.StreamReader, *sinks: Callable[[bytes], None]) -> None:
    """All of it, however much is kept: a full pipe would stop the command."""
    while data := await stream.read(_CHUNK):
        for sink in sinks:
            sink(data)
