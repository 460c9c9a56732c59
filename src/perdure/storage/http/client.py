"""Requests to a server: operations of the worker protocol, and requests to its HTTP API. Decides
which error an answer means, and whether to ask again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import quote

import msgspec

from perdure.errors import (
    AccessRefused,
    PerdureError,
    StorageRefused,
    StorageUnavailable,
)
from perdure.storage.contract.rest import RestRequest
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.server import ServerCall
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER, ErrorTold
from perdure.storage.http.address import Address, check_key, parse_address
from perdure.storage.http.connection import NotSent, Pool, Request, Response

KEY_VARIABLE = "PERDURE_API_KEY"
RETRIES = 8
FIRST_DELAY = timedelta(milliseconds=20)
LONGEST_DELAY = timedelta(seconds=2)
SOON = timedelta(milliseconds=250)
"""The longest delay before another try of a renewal, which cannot wait long."""
TIMEOUT = timedelta(seconds=20)
SHORT_TIMEOUT = timedelta(seconds=5)
OLD_HELLO = b'{"arguments":{}}'
Headers = Sequence[tuple[str, str]]
_AWAY = frozenset({408, 429, 500, 502, 503, 504})
_NO_ACCESS = frozenset({401, 403})


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """What a server, or somebody in front of it, answers instead. `raised`: by the storage."""

    type: str = ""
    detail: str = ""
    raised: ErrorTold | None = None


class OldHello(msgspec.Struct, frozen=True):
    """What a server of protocol 1 answers to `POST /v1/storage/hello`."""

    protocol: int


class Client:
    """`retries`: how often what may be repeated is, while there is no answer. `because`: the
    reason of orders that have none of their own."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        api_key: str | None,
        because: str | None = None,
        most: int,
        retries: int,
        timeout: timedelta,
        wants_hints: bool = True,
    ) -> None:
        self.shown = address.shown
        self.wants_hints = wants_hints
        self._address = address
        self._clock = clock
        self._because = because
        self._retries = retries
        self._timeout = timeout
        self._pool: Pool | None = None
        self._most = most
        self._headers = [
            ("host", address.shown),
            ("content-type", "application/json"),
            (PROTOCOL_HEADER, str(PROTOCOL)),
        ]
        if api_key is not None:
            self._headers.append(("authorization", f"Bearer {api_key}"))

    async def call(self, call: ServerCall) -> bytes:
        """See `ServerClient.call`."""
        longest = SOON if call.is_urgent else LONGEST_DELAY
        within = call.within or self._timeout
        within = min(within, SHORT_TIMEOUT) if call.is_urgent else within
        attempt = 0
        while True:
            try:
                return await self._send("POST", f"/v1/worker/{call.operation}", call.body, within)
            except StorageUnavailable as error:
                may_repeat = call.may_repeat or isinstance(error, NotSent)
                if attempt == self._retries or not may_repeat:
                    raise
            delay = min(FIRST_DELAY * 2**attempt, longest)
            await self._clock.sleep(delay * (1 + 0.5 * self._clock.jitter()))
            attempt += 1

    async def read_old_protocol(self) -> int | None:
        """See `ServerClient.read_old_protocol`."""
        try:
            answer = await self._send("POST", "/v1/storage/hello", OLD_HELLO, self._timeout)
            return msgspec.json.decode(answer, type=OldHello).protocol
        except (StorageRefused, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def request(self, request: RestRequest) -> bytes:
        """See `RestTransport.request`."""
        headers = self._headers_of(request)
        attempt = 0
        while True:
            try:
                return await self._send(
                    request.method, request.path, request.body, self._timeout, headers
                )
            except StorageUnavailable as error:
                may_repeat = request.is_read or isinstance(error, NotSent)
                if attempt == self._retries or not may_repeat:
                    raise
            await self._clock.sleep(min(FIRST_DELAY * 2**attempt, LONGEST_DELAY))
            attempt += 1

    def _headers_of(self, request: RestRequest) -> Headers:
        headers = [] if request.expected is None else [("if-match", f'"{request.expected}"')]
        reason = None if request.is_read else request.reason or self._because
        return headers if reason is None else [*headers, ("x-reason", quote(reason))]

    async def _send(
        self, method: str, path: str, body: bytes, within: timedelta, headers: Headers = ()
    ) -> bytes:
        every = [*self._headers, ("content-length", str(len(body))), *headers]
        request = Request(method, f"{self._address.path}{path}", every, body)
        response = await self._opened().send(request, within.total_seconds())
        if not 200 <= response.status < 300:
            raise self._error_of(response)
        return response.body

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _opened(self) -> Pool:
        """Made on the loop that first needs it."""
        if self._pool is None:
            self._pool = Pool(self._address, self._clock, self._most)
        return self._pool

    def _error_of(self, response: Response) -> PerdureError:
        trouble = _read(response.body)
        if trouble.raised is not None:
            return trouble.raised.value()
        said = trouble.detail or f"status {response.status}"
        problem = f"{self._address.shown}: {said}"
        if response.status == 404 and not trouble.type:
            problem += "; this is no Perdure server, or the path in its address is wrong"
        if response.status in _NO_ACCESS:
            advice = "; give a key as api_key or PERDURE_API_KEY" if response.status == 401 else ""
            return AccessRefused(problem + advice)
        kind = StorageUnavailable if response.status in _AWAY else StorageRefused
        return kind(problem)


def _read(body: bytes) -> Trouble:
    try:
        return msgspec.json.decode(body, type=Trouble)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Trouble()


def open_client(
    url: str,
    clock: Clock,
    *,
    api_key: str | None = None,
    max_connections: int = 16,
    retries: int = RETRIES,
    timeout: timedelta = TIMEOUT,
    hints: bool = True,
    because: str | None = None,
) -> Client:
    """A client with the options of an app. Raises InvalidInput."""
    return Client(
        parse_address(url),
        clock,
        api_key=check_key(api_key or os.environ.get(KEY_VARIABLE) or None),
        because=because,
        most=max_connections,
        retries=retries,
        timeout=timeout,
        wants_hints=hints,
    )
