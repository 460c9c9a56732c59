"""Sends the requests of remote operators and decodes the answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET

from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.errors import AccessRefused, InvalidInput, StorageRefused
from perdure.storage.contract.rest import RestRequest, RestTransport
from perdure.storage.contract.runs import Clock

T = TypeVar("T")

EXPLICIT_NULL = msgspec.Raw(b"null")
"""A field that is sent as null. A field that is None is left out."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose key a request carries, and the server's time."""

    environment: str
    scopes: tuple[str, ...]
    now: datetime


class Items(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. `cursor` continues it; without one it was the last."""

    items: list[T]
    cursor: str | None = None


class Triggered(msgspec.Struct, frozen=True):
    """A run, and whether this request created it."""

    id: str
    created: bool


class RestClient:
    """The API of one server, for one environment."""

    local_clock: Clock | None = None

    def __init__(self, environment: str, transport: RestTransport, handles: Handles) -> None:
        self._environment = environment
        self._transport = transport
        self.handles = handles
        self._identity: Identity | None = None

    async def identify(self) -> Identity:
        """Ask the server whose key this is. Raises AccessRefused without a valid key."""
        answer = await self._request(RestRequest(method="GET", path="/v1/identity"))
        self._identity = _decode(answer, Identity)
        return self._identity

    async def now(self) -> datetime:
        """The server's time."""
        return (await self.identify()).now

    async def get(self, answer: type[T], *path: str, **query: Any) -> T:
        """Read what is at `path`. Parameters that are None are left out."""
        request = RestRequest(method="GET", path=_encode_path(path) + _encode_query(query))
        return _decode(await self._send(request), answer)

    async def get_all(self, kind: type[T], *path: str) -> list[T]:
        """Read every page of the list at `path`."""
        items: list[T] = []
        cursor: str | None = None
        while True:
            page: Items[T] = await self.get(Items[kind], *path, cursor=cursor)  # type: ignore[valid-type]  # known at run time only
            items += page.items
            cursor = page.cursor
            if cursor is None:
                return items

    async def send(
        self,
        answer: type[T],
        method: str,
        *path: str,
        x_reason: str | None = None,
        expected: int | None = None,
        query: Mapping[str, Any] | None = None,
        **body: Any,
    ) -> T:
        """Change something. Fields of the body that are None are left out. `x_reason` is for
        routes whose body has no reason."""
        given = {name: _plain(value) for name, value in body.items() if value is not None}
        request = RestRequest(
            method=method,
            path=_encode_path(path) + _encode_query(query or {}),
            body=_encode_body(given),
            reason=x_reason,
            expected=expected,
        )
        return _decode(await self._send(request), answer)

    async def create_run(self, *path: str, **body: Any) -> RunHandle[Any]:
        """Send a request that triggers a run."""
        triggered = await self.send(Triggered, "POST", *path, **body)
        return self.handles.make(triggered.id, created=triggered.created)

    def close(self) -> None:
        self._transport.close()

    async def _send(self, request: RestRequest) -> bytes:
        identity = self._identity or await self.identify()
        if identity.environment != self._environment:
            known, wanted = identity.environment, self._environment
            problem = f"this key is for {known!r}, not {wanted!r}"
            raise AccessRefused(f"{problem}; name that environment, or use another key")
        return await self._request(request)

    async def _request(self, request: RestRequest) -> bytes:
        return await self._transport.request(request)


def given_fields(**fields: Any) -> dict[str, Any]:
    """The fields that are not UNSET; None among them is sent as null."""
    return {
        name: EXPLICIT_NULL if value is None else value
        for name, value in fields.items()
        if value is not UNSET
    }


def _encode_path(names: tuple[str, ...]) -> str:
    return "/".join(("/v1", *map(_encode_name, names)))


def _encode_name(name: str) -> str:
    """Raises InvalidInput for a name that no path can hold."""
    if name in (".", ".."):
        advice = "a server cannot be asked about it; use it beside the database"
        raise InvalidInput("name", f"{name!r:.80} cannot be part of a path: {advice}")
    try:
        return quote(name, safe=":")
    except UnicodeEncodeError:
        problem = f"must not hold lone surrogates, but is {name!r:.80}"
        raise InvalidInput("name", problem) from None


def _encode_query(parameters: Mapping[str, Any]) -> str:
    given = {name: _query_text(value) for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return value.value if isinstance(value, StrEnum) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _encode_body(fields: dict[str, Any]) -> bytes:
    """Raises InvalidInput for values that JSON cannot hold."""
    if not fields:
        return b""
    try:
        return msgspec.json.encode(fields)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput("body", f"cannot be sent as JSON: {error}") from error


def _decode(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem = f"the answer is not one of this version's Perdure server: {error}"
        raise StorageRefused(problem) from error
