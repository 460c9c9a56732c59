"""Requests to the HTTP API of a Perdure server, for apps that have no database of their own."""

from __future__ import annotations

from typing import Protocol

import msgspec


class RestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `path` is percent-encoded and includes the query string; `body` is JSON or
    empty. `reason` is sent as `X-Reason`, `expected` as `If-Match`."""

    method: str
    path: str
    body: bytes = b""
    reason: str | None = None
    expected: int | None = None

    @property
    def is_read(self) -> bool:
        """Whether the request can be repeated without a second effect."""
        return self.method == "GET"


class RestTransport(Protocol):
    """Sends requests to one server with one API key."""

    async def request(self, request: RestRequest) -> bytes:
        """Return the body of the answer. A read is repeated while the server does not answer;
        any other request only if no connection could be made.

        Raises the error that the server reports, AccessRefused, or StorageUnavailable. After a
        StorageUnavailable nobody can tell whether the request took effect.
        """
        ...

    def close(self) -> None: ...
