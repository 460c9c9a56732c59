"""Where operators' orders go if others carry them out."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the API. `because`: what the audit log is told, where the body has no reason.
    With `expected`, only a run that is still at this sequence is meant."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    because: str | None = None
    expected: int | None = None


class OrderTransport(Protocol):
    async def environment(self) -> str:
        """Whose runs it is about: a key belongs to one environment."""
        ...

    async def give(self, order: Order) -> bytes:
        """The answer, as JSON. Raises what was raised there, AccessRefused, or
        StorageUnavailable: then nobody knows whether it was carried out."""
        ...
