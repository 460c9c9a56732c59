"""A server that has the database, as the engine asks it: one typed request after another."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TypeVar

import msgspec

from perdure.engine.protocol.operations import OPERATIONS, Operation
from perdure.engine.protocol.workers import HelloAnswer, HelloRequest
from perdure.errors import PerdureError, StorageRefused
from perdure.storage.contract.server import ServerCall, ServerClient
from perdure.storage.contract.wire_errors import PROTOCOL
from perdure.telemetry import metrics
from perdure.telemetry.registry import Registry

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)

_URGENT = frozenset({"renew"})
_BY_REQUEST: dict[type, Operation] = {it.request: it for it in OPERATIONS.values()}


class Server:
    """Counts and times each request. On one loop."""

    def __init__(self, client: ServerClient, registry: Registry) -> None:
        self.client = client
        self._seconds = registry.histogram(metrics.STORAGE_SECONDS)
        self._errors = registry.counter(metrics.STORAGE_ERRORS)

    @property
    def wants_hints(self) -> bool:
        return self.client.wants_hints

    async def hello(self) -> HelloAnswer:
        return await self.ask(HelloRequest(), HelloAnswer)

    async def check(self) -> HelloAnswer:
        """Raise AccessRefused without a good key, StorageRefused for a server of another
        version."""
        try:
            hello = await self.hello()
        except StorageRefused:
            old = await self.client.read_old_protocol()
            if old is None:
                raise
            raise self._other_version(old) from None
        if hello.protocol != PROTOCOL:
            raise self._other_version(hello.protocol)
        return hello

    def _other_version(self, found: int) -> StorageRefused:
        older = "server" if found < PROTOCOL else "worker"
        problem = f"the server at {self.client.shown} speaks worker protocol {found}"
        return StorageRefused(
            f"{problem}, this code speaks {PROTOCOL}; upgrade Perdure on the {older}"
        )

    async def ask(
        self, request: msgspec.Struct, answer: type[AnswerT], within: timedelta | None = None
    ) -> AnswerT:
        """Raise what the server raised, StorageUnavailable, StorageRefused or AccessRefused."""
        operation = _BY_REQUEST[type(request)]
        call = ServerCall(
            operation=operation.name,
            body=msgspec.json.encode(request),
            may_repeat=operation.may_repeat,
            is_urgent=operation.name in _URGENT,
            within=within,
        )
        return self._decode(await self._timed(call), answer)

    def close(self) -> None:
        self.client.close()

    async def _timed(self, call: ServerCall) -> bytes:
        time = asyncio.get_running_loop().time
        began = time()
        try:
            return await self.client.call(call)
        except Exception as error:
            self._errors.add(1, (call.operation, type(error).__name__))
            raise
        finally:
            self._seconds.observe(time() - began, (call.operation,))

    def _decode(self, body: bytes, answer: type[AnswerT]) -> AnswerT:
        try:
            return msgspec.json.decode(body, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, PerdureError) as error:
            problem = f"{self.client.shown} is no Perdure server, or of another version"
            raise StorageRefused(f"{problem}: {error}") from error
