"""A connection to a server that has the database: the worker protocol and the HTTP API."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import msgspec

from perdure.storage.contract.rest import RestTransport


class ServerCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the worker protocol. `may_repeat`: it may be sent again while no answer
    comes. `is_urgent`: it cannot wait long for another try. `within`: another time limit."""

    operation: str
    body: bytes
    may_repeat: bool = True
    is_urgent: bool = False
    within: timedelta | None = None


class ServerClient(RestTransport, Protocol):
    """Sends requests to one server with one API key, on one loop."""

    shown: str
    """The server's address, for messages."""

    wants_hints: bool
    """Whether the app was opened with wake-ups."""

    async def call(self, call: ServerCall) -> bytes:
        """Return the answer of `POST /v1/worker/{operation}`, as JSON. Raise the error that the
        server reports, AccessRefused, StorageRefused, or StorageUnavailable without an answer."""
        ...

    async def read_old_protocol(self) -> int | None:
        """Return the protocol version of a server that knows no `/v1/worker`."""
        ...
