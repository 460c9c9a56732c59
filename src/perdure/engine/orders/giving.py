"""From an order to a request, and from the answer to values."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from perdure.engine.handle import RunHandle
from perdure.errors import InvalidInput
from perdure.storage.orders import Order, OrderTransport

if TYPE_CHECKING:
    from perdure.engine.app import App

T = TypeVar("T")


class Made(msgspec.Struct, frozen=True):
    """A run, and whether the order made it."""

    id: str
    created: bool


class Giving:
    """What every part of a remote app orders through."""

    def __init__(self, app: App, transport: OrderTransport) -> None:
        self._app = app
        self._transport = transport

    async def order(
        self,
        kind: type[T],
        method: str,
        *path: str,
        because: str | None = None,
        expected: int | None = None,
        **body: Any,
    ) -> T:
        """The answer to it. What is none is left out, as at the API's own door."""
        given = {name: _plain(value) for name, value in body.items() if value is not None}
        place = "/".join(("/v1", *map(_part, path)))
        answer = await self._transport.give(
            Order(method=method, path=place, body=given, because=because, expected=expected)
        )
        return msgspec.json.decode(answer, type=kind)

    async def make(self, *path: str, **body: Any) -> RunHandle[Any]:
        """The run that comes of it."""
        made = await self.order(Made, "POST", *path, **body)
        return RunHandle(self._app, made.id, None, created=made.created)


def given(**fields: Any) -> dict[str, Any]:
    """Those that were given, with what cannot be left out: none, where it says something."""
    return {
        name: NOTHING if value is None else value
        for name, value in fields.items()
        if value is not UNSET
    }


NOTHING = msgspec.Raw(b"null")
"""None that is said, not left out."""


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _part(text: str) -> str:
    """A name within a path. Raises InvalidInput for what no path can hold."""
    if text in (".", ".."):
        advice = "a server cannot be asked about it; order it beside the database"
        raise InvalidInput("name", f"{text!r:.80} would be no part of a path: {advice}")
    return quote(text, safe=":")
