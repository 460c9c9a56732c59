"""Connections to one server that are kept and used again: HTTP/1.1 on asyncio's streams.

h11 parses and does no I/O, so a cancelled request costs its connection and nothing else; threads
around the standard library's client would go on waiting for answers that nobody wants any more.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache

import h11
import msgspec

from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Clock
from perdure.storage.http.address import Address

CONNECT_WITHIN = 5.0
IDLE = 3.0
"""Seconds after which a connection is not used again: servers close them, ours after five."""
LARGEST_HEAD = 64 * 1024
_CHUNK = 256 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Headers = list[tuple[str, str]]


class NotSent(StorageUnavailable):
    """There was nobody to send it to: nothing can have come of it."""


class Request(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: Headers
    body: bytes


class Response(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class Connection:
    """One request at a time. After anything but a whole answer it is of no use any more."""

    def __init__(self, streams: Streams) -> None:
        self._reader, self._writer = streams
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self.rests_since = 0.0

    async def exchange(self, request: Request) -> Response:
        """Raises OSError and h11.RemoteProtocolError."""
        head = h11.Request(method=request.method, target=request.target, headers=request.headers)
        for event in (head, h11.Data(request.body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        while not isinstance(answer := await self._next(), h11.Response):
            pass  # hints of what is to come
        received = bytearray()
        while isinstance(piece := await self._next(), h11.Data):
            received += piece.data
        return Response(answer.status_code, bytes(received))

    @property
    def is_reusable(self) -> bool:
        """Whether both sides would have it used again; makes it ready for that."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return not self._reader.at_eof()

    def close(self) -> None:
        self._writer.transport.abort()

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            received = await self._reader.read(_CHUNK)
            if not received and self._http.their_state is h11.SEND_RESPONSE:
                raise ConnectionError("it closed the connection without an answer")
            self._http.receive_data(received)
        return event


class Pool:
    """On one loop. As many as are asked at once, up to `most`; the others wait."""

    def __init__(self, address: Address, clock: Clock, most: int) -> None:
        self._address = address
        self._clock = clock
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._room = asyncio.Semaphore(most)
        self._is_closed = False

    async def send(self, request: Request, within: float) -> Response:
        """Raises StorageUnavailable; NotSent, if not even a connection could be made."""
        async with self._room:
            connection = self._rested() or await self._connect()
            self._busy.add(connection)
            is_whole = False
            try:
                async with asyncio.timeout(within):
                    response = await connection.exchange(request)
                is_whole = True
                return response
            except TimeoutError:
                problem = f"{self._address.shown} did not answer within {within:g} s"
                raise StorageUnavailable(problem) from None
            except (OSError, h11.RemoteProtocolError) as error:
                raise StorageUnavailable(f"{self._address.shown} broke off: {error}") from error
            finally:
                self._busy.discard(connection)
                self._keep(connection, is_whole)

    def close(self) -> None:
        self._is_closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    def _rested(self) -> Connection | None:
        """The one used last, unless the server may have closed it by now."""
        now = self._clock.elapsed()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.rests_since < IDLE:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection, is_whole: bool) -> None:
        if is_whole and not self._is_closed and connection.is_reusable:
            connection.rests_since = self._clock.elapsed()
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> Connection:
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                streams = await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=_tls() if address.is_tls else None,
                    limit=_CHUNK,
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {CONNECT_WITHIN:g} s"
            raise NotSent(f"cannot connect to {address.shown}: {why}") from error
        return Connection(streams)


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading every authority of the system takes tens of milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
