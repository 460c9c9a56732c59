"""A connection to a server that has the database: requests of the worker protocol and the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import msgspec


class ServerCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the worker protocol. `may_repeat`: it may be sent again while no answer
    comes. `is_urgent`: it cannot wait long for another try. `within`: another time limit."""

    operation: str
    body: bytes
    protocol: int
    may_repeat: bool = True
    is_urgent: bool = False
    within: timedelta | None = None


class ServerClient(Protocol):
    """May be used on one loop."""

    shown: str
    """The server's address, for messages."""

    async def call(self, call: ServerCall) -> bytes:
        """Return the answer, as JSON. Raise what the server raised, AccessRefused,
        StorageRefused, or StorageUnavailable if there was no answer."""
        ...

    async def old_protocol(self) -> int | None:
        """Return the protocol of a server that knows no `/v1/worker`, if it is a server."""
        ...

    def wants_hints(self) -> bool: ...

    def close(self) -> None: ...
