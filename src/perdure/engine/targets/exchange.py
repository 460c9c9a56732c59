"""One request and its response over HTTP/1.1, read no further than its limit.

Needs h11, which parses and does no I/O: the sockets stay ours, and so does the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import h11
import msgspec

from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.targets.connection import Streams
from perdure.net.url import Endpoint
from perdure.telemetry.redactor import OVERLAP_CHARS

LARGEST_HEAD = 64 * 1024
_CHUNK = 64 * 1024

Headers = Sequence[tuple[str, str]]


class Request(msgspec.Struct, frozen=True):
    method: str
    endpoint: Endpoint
    headers: Headers
    body: bytes | None


class Response(msgspec.Struct, kw_only=True):
    """`body` is its beginning if it is longer than the limit; `beyond` is what was received of the
    rest, by which a secret is recognised that the limit divides."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_truncated: bool
    beyond: bytes = b""


async def exchange(
    streams: Streams, request: Request, limit: int, on_first_byte: Callable[[], None]
) -> Response:
    """Raises TargetFailed. However it ends, the connection is closed."""
    _, writer = streams
    try:
        return await _Exchange(streams, limit, on_first_byte).perform(request)
    except h11.RemoteProtocolError as error:
        message = f"{request.endpoint.shown} does not speak HTTP/1.1: {error}"
        raise TargetFailed("BadResponse", message) from error
    except OSError as error:
        message = f"{request.endpoint.shown} broke off: {error.strerror or error}"
        raise TargetFailed("ConnectionLost", message) from error
    finally:
        writer.transport.abort()


class _Exchange:
    def __init__(self, streams: Streams, limit: int, on_first_byte: Callable[[], None]) -> None:
        self._reader, self._writer = streams
        self._limit = limit
        self._on_first_byte = on_first_byte
        self._has_begun = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)

    async def perform(self, request: Request) -> Response:
        self._send(request)
        head = await self._head()
        body = bytearray()
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
            if len(body) > self._limit:
                break
        return Response(
            status=head.status_code,
            headers={
                name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers
            },
            body=bytes(body[: self._limit]),
            is_truncated=len(body) > self._limit,
            beyond=bytes(body[self._limit :][:OVERLAP_CHARS]),
        )

    def _send(self, request: Request) -> None:
        """Not awaited: it is in memory anyway, and whoever answers early has not read it all."""
        asked = h11.Request(
            method=request.method, target=request.endpoint.path, headers=list(request.headers)
        )
        events: list[h11.Event] = [asked, h11.EndOfMessage()]
        if request.body is not None:
            events.insert(1, h11.Data(request.body))
        for event in events:
            self._writer.write(self._http.send(event) or b"")

    async def _head(self) -> h11.Response:
        while not isinstance(event := await self._next(), h11.Response):
            pass  # hints of what is to come
        return event

    def _begin(self, received: bytes) -> None:
        if not received:
            raise ConnectionError("it closed the connection without an answer")
        self._has_begun = True
        self._on_first_byte()

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            received = await self._reader.read(_CHUNK)
            if not self._has_begun:
                self._begin(received)
            self._http.receive_data(received)
        assert not isinstance(event, type) or event is h11.PAUSED
        return event
