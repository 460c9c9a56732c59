"""How many connections a server takes, and how long it waits for what they want.

Each costs a file descriptor, and a process that has none left cannot even refuse the next one. So
there are always some to spare: for those who are refused, and for the storage.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.errors import InvalidInput
from perdure.telemetry import table
from perdure.web.problems import CONTENT_TYPE, Refusal, RequestRefused, problem_of

MOST_CONNECTIONS = 4096
MOST_WAITING = 2048
"""Connections that the loop takes at once, before it can refuse any of them."""
RESERVED = 256
"""Files for storage, webhooks and logs."""
FEWEST = 16
PATIENCE = 30.0
"""Seconds for the head of a request."""


class Room(msgspec.Struct, frozen=True):
    """How many connections there is room for, and how many may wait to be taken."""

    connections: int = MOST_CONNECTIONS
    waiting: int = MOST_WAITING


ENOUGH = Room()


def make_room() -> Room:
    """As much as the process may have. Raises InvalidInput if that is next to nothing."""
    files = _most_files()
    return ENOUGH if files is None else room_in(files)


def room_in(files: int) -> Room:
    """Within so many open files."""
    free = files - min(RESERVED, files // 2)
    waiting = min(MOST_WAITING, free // 3)
    connections = min(MOST_CONNECTIONS, free - waiting)
    advice = "allow it more (ulimit -n, LimitNOFILE=)"
    if connections < FEWEST:
        raise InvalidInput("files", f"this process may open {files} only; {advice}")
    if connections < MOST_CONNECTIONS:
        table.SERVER_CONFINED.say(connections=connections, files=files)
    return Room(connections, waiting)


def _most_files() -> int | None:
    """The limit, raised as far as the machine allows; none: there is none on this system."""
    try:
        import resource
    except ImportError:
        return None
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        most = soft
    return None if most == resource.RLIM_INFINITY else most


def taking(room: Room) -> type[Connection]:
    """Connections of a server that has so much room."""
    return type("Connection", (Connection,), {"most": room.connections})


class Connection(H11Protocol):
    """uvicorn's, but one too many is told so and closed at once, and so is one that has nothing
    to say for too long."""

    most = MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as there
        super().connection_made(transport)
        if len(self.connections) > self.most:
            problem = f"there are {self.most} connections already; come again later"
            self._refuse(RequestRefused(Refusal.TOO_MANY_CONNECTIONS, problem))
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(PATIENCE, self._out_of_patience)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _out_of_patience(self) -> None:
        problem = f"the head of the request did not arrive within {PATIENCE:g} s"
        self._refuse(RequestRefused(Refusal.BODY_TOO_SLOW, problem))

    def _refuse(self, error: RequestRefused) -> None:
        problem = problem_of(error, "")
        body = msgspec.json.encode(problem)
        head = [
            f"HTTP/1.1 {problem.status} {problem.title}",
            f"content-type: {CONTENT_TYPE}",
            f"content-length: {len(body)}",
            "connection: close",
            "retry-after: 1",
            "",
            "",
        ]
        self.transport.write("\r\n".join(head).encode() + body)
        self.transport.close()
