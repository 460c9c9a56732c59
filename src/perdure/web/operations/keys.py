"""API keys over HTTP: those of the caller's environment.

A caller hands out the text of no key that may do more, or longer, than its own: neither by creating
one nor by rotating one. It may revoke any.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from perdure.engine.operators.keys import ApiKey, Grantor, Keys
from perdure.errors import AccessRefused
from perdure.web.models.requests import KeyBody, NameQuery, ReasonBody, RotateBody
from perdure.web.models.views import Items, KeyView, key_view
from perdure.web.offload import page_by_name
from perdure.web.operations.operation import Call
from perdure.web.problems import Refusal, RequestRefused

T = TypeVar("T")


async def list_keys(call: Call, query: NameQuery) -> Items[KeyView]:
    """Oldest first."""
    found = await _keys(call).list()
    page, cursor = page_by_name(found, _place, query.limit, query.cursor)
    return Items([key_view(key) for key in page], cursor)


def _place(key: ApiKey) -> str:
    return f"{key.created_at:%Y%m%dT%H%M%S.%f}_{key.id}"


async def create_key(call: Call, body: KeyBody) -> KeyView:
    creating = _keys(call).create(
        body.name, body.scopes, expires_in=body.expires_in or None, by=call.by
    )
    new = await _grant(creating)
    return await _answer(call, new.key, new.text)


async def revoke_key(call: Call, body: ReasonBody) -> KeyView:
    return await _answer(call, await _keys(call).revoke(call.path["key_id"], by=call.by))


async def rotate_key(call: Call, body: RotateBody) -> KeyView:
    new = await _grant(_keys(call).rotate(call.path["key_id"], body.overlap, by=call.by))
    return await _answer(call, new.key, new.text)


def _keys(call: Call) -> Keys:
    """The keys that the caller may manage."""
    caller = call.caller
    grantor = Grantor(
        id=caller.id,
        environment=caller.environment,
        scopes=caller.scopes,
        expires_at=caller.expires_at,
    )
    return Keys(call.app.runtime, grantor)


async def _grant(granting: Awaitable[T]) -> T:
    try:
        return await granting
    except AccessRefused as refusal:
        raise RequestRefused(Refusal.SCOPE_MISSING, str(refusal)) from refusal


async def _answer(call: Call, key: ApiKey, text: str | None = None) -> KeyView:
    """Let this server know of the change before it answers."""
    await call.api.keyring.refresh()
    return key_view(key, text)
