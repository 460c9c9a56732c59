"""What a worker and its processes say to each other, and how: JSON, one length before each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core.decide.ending import Ending
from perdure.core.run.run import Run
from perdure.engine.tasks.location import Location

_LENGTH = 4


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Perform this attempt."""

    run: Run
    location: Location
    result_limit: int
    log_level: int
    trace_carrier: dict[str, str] | None = None


class Began(msgspec.Struct, frozen=True, tag=True):
    """The handler is found, and called now."""


class LogLine(msgspec.Struct, frozen=True, tag=True):
    """Something the handler said through `ctx.log`."""

    logger: str
    level: int
    message: str
    fields: dict[str, Any]


class Kept(msgspec.Struct, frozen=True, tag=True):
    """A line for the run's log."""

    level: int
    logger: str
    message: str
    fields: dict[str, Any]


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """What the handler said through `ctx.progress`."""

    fraction: float
    message: str


class Awaits(msgspec.Struct, frozen=True, tag=True):
    """The runs whose results the handler awaits now."""

    run_ids: tuple[str, ...]


class Over(msgspec.Struct, frozen=True, tag=True):
    """The attempt has ended."""

    ending: Ending


Reply = Began | LogLine | Kept | Progressed | Awaits | Over

REQUESTS: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
REPLIES: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class Channel:
    """One end of a pair of sockets. Any thread may send, one at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Request | Reply) -> None:
        """Raises OSError if the other side is gone."""
        body = msgspec.json.encode(message)
        with self._sending:
            self._socket.sendall(len(body).to_bytes(_LENGTH, "big") + body)

    def receive(self, wait: Callable[[], object] = lambda: None) -> bytes | None:
        """The next message; None if the other side is gone. `wait` is called before each read,
        and may raise to give up."""
        length = self._read(_LENGTH, wait)
        return None if length is None else self._read(int.from_bytes(length, "big"), wait)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int, wait: Callable[[], object]) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            wait()
            try:
                part = self._socket.recv(size - len(parts))
            except ConnectionError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
