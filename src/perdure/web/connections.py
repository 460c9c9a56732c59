"""How many connections a server takes, and how long each may wait.

Each costs a file descriptor, and a process that has none left cannot even refuse the next one. So
there are always some to spare: for those who are refused, and for the storage.

Every state in which a connection waits for its client has a deadline that the client cannot
extend: the head of a request, the rest of a body after its response, a response that is not read.
A connection counts against the share of the key that it showed last, until then against that of its
address. No key, no environment and no address can take them all. If they are taken all the same,
a new connection ends the oldest one that waits and has not shown a valid key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum
from typing import Any, ClassVar

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.errors import InvalidInput
from perdure.telemetry import table
from perdure.web.auth.caller import Caller
from perdure.web.auth.request_guard import ON_AUTHENTICATED
from perdure.web.auth.shares import Share, Shares
from perdure.web.problems import CONTENT_TYPE, Refusal, RequestRefused, problem_of

MOST_CONNECTIONS = 4096
MOST_WAITING = 2048
"""Connections that the loop takes at once, before it can refuse any of them."""
RESERVED = 256
"""Files for storage, webhooks and logs."""
FEWEST = 16
REQUEST_HEAD_TIMEOUT_S = 30.0
UNREAD_BODY_TIMEOUT_S = 5.0
"""For the rest of a request's body, once its response has been sent."""
RESPONSE_STALL_TIMEOUT_S = 30.0
"""For a client to read from a response that fills the send buffer."""
CLOSE_TIMEOUT_S = 5.0
"""For a client to read the rest of a response, once the connection is to be closed."""
UNAUTHENTICATED_SHARE = 0.25
"""Of all connections: how many one address may have that have not shown a valid key."""
KEY_SHARE = 0.5
ENVIRONMENT_SHARE = 0.625
RETRY_AFTER_S = 1.0


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
    unauthenticated: Counter[str] = Counter()
    shares = make_shares(room.connections)
    fields = {
        "most": room.connections,
        "unauthenticated": unauthenticated,
        "strangers": {},
        "shares": shares,
    }
    return type("Connection", (Connection,), fields)


def make_shares(connections: int) -> Shares:
    """Of the connections that have shown a valid key."""
    share = Share(connections, int(connections * KEY_SHARE), int(connections * ENVIRONMENT_SHARE))
    return Shares("connections", share, Refusal.TOO_MANY_CONNECTIONS, RETRY_AFTER_S)


class Phase(Enum):
    """What a connection waits for. Only the first four have a deadline."""

    HEAD = "the head of a request"
    UNREAD_BODY = "the rest of a body whose request has been answered"
    STALLED_RESPONSE = "the client to read a response"
    CLOSING = "the client to read the last response"
    SERVING = "the application"


class Connection(H11Protocol):
    """uvicorn's connection with limits: on their number, on those of one address, and on the time
    that each phase may take."""

    most = MOST_CONNECTIONS
    unauthenticated: ClassVar[Counter[str]] = Counter()
    """How many connections of each address have not shown a valid key."""
    strangers: ClassVar[dict[Connection, None]] = {}
    """These connections, oldest first."""
    shares: ClassVar[Shares] = make_shares(MOST_CONNECTIONS)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, ON_AUTHENTICATED: self._set_caller}
        self._timer: asyncio.TimerHandle | None = None
        self._phase = Phase.SERVING
        self._address: str | None = None
        """The address whose share this connection counts against, if it does."""
        self._owner: tuple[str, str] | None = None
        """The key and environment whose shares it counts against, if it does."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as there
        super().connection_made(transport)
        self._count()
        share = max(1, int(self.most * UNAUTHENTICATED_SHARE))
        if self.unauthenticated[self._address or ""] > share:
            problem = f"this address has {share} connections that have not shown a valid key"
            self._refuse_one_too_many(problem)
        elif len(self.connections) > self.most and not self._take_place_of_a_stranger():
            self._refuse_one_too_many(f"there are {self.most} connections already")
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_deadline()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._uncount()
        self._disown()
        self._stop_timer()
        super().connection_lost(exc)

    def _count(self) -> None:
        self._address = self.client[0] if self.client else ""
        self.unauthenticated[self._address] += 1
        self.strangers[self] = None

    def _uncount(self) -> None:
        if self._address is None:
            return
        del self.strangers[self]
        self.unauthenticated[self._address] -= 1
        if not self.unauthenticated[self._address]:
            del self.unauthenticated[self._address]
        self._address = None

    def _take_place_of_a_stranger(self) -> bool:
        """End the oldest connection that waits for its client and has not shown a valid key, as
        several addresses together can take every place. Return whether there was one."""
        waiting = (it for it in self.strangers if it._phase is not Phase.SERVING)
        oldest = next(waiting, None)
        if oldest is None:
            return False
        oldest._uncount()
        oldest.transport.abort()
        return True

    def _set_caller(self, caller: Caller) -> None:
        """Count against the caller's shares from now on. Raises RequestRefused if one of them is
        exhausted."""
        owner = (caller.id, caller.environment)
        if owner == self._owner:
            return
        self.shares.acquire(*owner)
        self._disown()
        self._uncount()
        self._owner = owner

    def _disown(self) -> None:
        if self._owner is not None:
            self.shares.release(*self._owner)
            self._owner = None

    def _update_deadline(self) -> None:
        """Start the timer of the phase that has begun. Data within a phase does not extend it."""
        phase = self._current_phase()
        if phase is self._phase:
            return
        self._stop_timer()
        self._phase = phase
        if phase is not Phase.SERVING:
            self._timer = self.loop.call_later(_timeout_of(phase), self._time_out)

    def _current_phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.CLOSING
        if self.flow.write_paused:
            return Phase.STALLED_RESPONSE
        if self.conn.their_state is h11.IDLE:
            return Phase.HEAD
        return Phase.UNREAD_BODY if self.conn.our_state is h11.DONE else Phase.SERVING

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self._phase is Phase.HEAD:
            problem = f"the head of the request did not arrive within {REQUEST_HEAD_TIMEOUT_S:g} s"
            self._refuse(RequestRefused(Refusal.BODY_TOO_SLOW, problem))
        elif self._phase is Phase.UNREAD_BODY:
            self.transport.close()
        else:
            self.transport.abort()
        self._update_deadline()

    def _refuse_one_too_many(self, problem: str) -> None:
        error = RequestRefused(Refusal.TOO_MANY_CONNECTIONS, f"{problem}; come again later")
        self._refuse(error)

    def _refuse(self, error: RequestRefused) -> None:
        problem = problem_of(error, "")
        body = msgspec.json.encode(problem)
        head = [
            f"HTTP/1.1 {problem.status} {problem.title}",
            f"content-type: {CONTENT_TYPE}",
            f"content-length: {len(body)}",
            "connection: close",
            f"retry-after: {RETRY_AFTER_S:.0f}",
            "",
            "",
        ]
        self.transport.write("\r\n".join(head).encode() + body)
        self.transport.close()


def _timeout_of(phase: Phase) -> float:
    """Seconds."""
    match phase:
        case Phase.HEAD:
            return REQUEST_HEAD_TIMEOUT_S
        case Phase.UNREAD_BODY:
            return UNREAD_BODY_TIMEOUT_S
        case Phase.STALLED_RESPONSE:
            return RESPONSE_STALL_TIMEOUT_S
        case _:
            return CLOSE_TIMEOUT_S
