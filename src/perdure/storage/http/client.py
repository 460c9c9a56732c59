"""One operation asked of a server: the request, the answer or the error that came of it, and
whether to ask again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import msgspec

from perdure.errors import (
    AccessRefused,
    PerdureError,
    StorageRefused,
    StorageUnavailable,
)
from perdure.storage.http.address import Address
from perdure.storage.http.connection import NotSent, Pool, Request, Response
from perdure.storage.operations import OPERATIONS, Hello, Operation
from perdure.storage.orders import Order
from perdure.storage.protocol import Clock
from perdure.storage.server_client import ServerCall
from perdure.storage.wire import (
    PROTOCOL,
    PROTOCOL_HEADER,
    ErrorTold,
    encode_arguments,
    value_of,
)

RETRIES = 8
FIRST_DELAY = timedelta(milliseconds=20)
LONGEST_DELAY = timedelta(seconds=2)
SOON = timedelta(milliseconds=250)
"""The longest delay before another try of a renewal, which cannot wait long."""
TIMEOUT = timedelta(seconds=20)
SHORT_TIMEOUT = timedelta(seconds=5)
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
        hints: bool = True,
    ) -> None:
        self._address = address
        self._clock = clock
        self._because = because
        self._retries = retries
        self._timeout = timeout
        self._pool: Pool | None = None
        self._most = most
        self._hints = hints
        self.shown = address.shown
        self._common = [("host", address.shown), ("content-type", "application/json")]
        if api_key is not None:
            self._common.append(("authorization", f"Bearer {api_key}"))
        self._headers = [*self._common, (PROTOCOL_HEADER, str(PROTOCOL))]

    async def ask(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        """Raises what the storage there raised, StorageUnavailable, or AccessRefused."""
        is_urgent = operation.name == "renew"
        longest = SOON if is_urgent else LONGEST_DELAY
        within = min(self._timeout, SHORT_TIMEOUT) if is_urgent else self._timeout
        body, attempt = encode_arguments(arguments), 0
        while True:
            try:
                return await self.ask_once(operation, body, within)
            except StorageUnavailable as error:
                may_repeat = operation.repeats or isinstance(error, NotSent)
                if attempt == self._retries or not may_repeat:
                    raise
            delay = min(FIRST_DELAY * 2**attempt, longest)
            await self._clock.sleep(delay * (1 + 0.5 * self._clock.jitter()))
            attempt += 1

    async def ask_once(self, operation: Operation, body: bytes, within: timedelta) -> Any:
        answer = await self._send("POST", f"/v1/storage/{operation.name}", body, within)
        try:
            return value_of(msgspec.json.decode(answer, type=operation.answer))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = f"{self._address.shown} is no Perdure server, or of another version"
            raise StorageRefused(f"{problem}: {error}") from error

    async def call(self, call: ServerCall) -> bytes:
        """Raise what the server raised, StorageUnavailable, StorageRefused or AccessRefused."""
        longest = SOON if call.is_urgent else LONGEST_DELAY
        within = call.within or self._timeout
        within = min(within, SHORT_TIMEOUT) if call.is_urgent else within
        headers = [*self._common, (PROTOCOL_HEADER, str(call.protocol))]
        attempt = 0
        while True:
            try:
                return await self._send(
                    "POST", f"/v1/worker/{call.operation}", call.body, within, headers=headers
                )
            except StorageUnavailable as error:
                may_repeat = call.may_repeat or isinstance(error, NotSent)
                if attempt == self._retries or not may_repeat:
                    raise
            delay = min(FIRST_DELAY * 2**attempt, longest)
            await self._clock.sleep(delay * (1 + 0.5 * self._clock.jitter()))
            attempt += 1

    async def old_protocol(self) -> int | None:
        headers = [*self._common, (PROTOCOL_HEADER, "1")]
        try:
            answer = await self._send(
                "POST", "/v1/storage/hello", b'{"arguments":{}}', self._timeout, headers=headers
            )
            return msgspec.json.decode(answer, type=OldHello).protocol
        except (StorageRefused, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def wants_hints(self) -> bool:
        return self._hints

    async def environment(self) -> str:
        hello: Hello = await self.ask(OPERATIONS["hello"], {})
        return hello.environment

    async def give(self, order: Order) -> bytes:
        """Once more only while there was nobody to give it to: twice may not be once."""
        body = msgspec.json.encode(order.body) if order.body else b""
        headers = [] if order.expected is None else [("if-match", f'"{order.expected}"')]
        because = order.because or self._because
        if because is not None:
            headers.append(("x-reason", quote(because)))
        attempt = 0
        while True:
            try:
                return await self._send(order.method, order.path, body, self._timeout, headers)
            except NotSent:
                if attempt == self._retries:
                    raise
            await self._clock.sleep(min(FIRST_DELAY * 2**attempt, LONGEST_DELAY))
            attempt += 1

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes,
        within: timedelta,
        besides: Headers = (),
        *,
        headers: Headers | None = None,
    ) -> bytes:
        common = self._headers if headers is None else headers
        every = [*common, ("content-length", str(len(body))), *besides]
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
