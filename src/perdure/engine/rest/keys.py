"""API keys through the API of a server: those of the key's own environment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.engine.operators.keys import OVERLAP, ApiKey, Keys, NewKey, make_scopes
from perdure.engine.rest.client import RestClient
from perdure.engine.runtime.input import OPERATOR, By, Duration, duration, some_time, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.errors import InvalidInput


class KeyText(msgspec.Struct, frozen=True):
    """The text of a new key, which is shown once."""

    key: str


@explain_methods
class RemoteKeys(Keys):
    """The key names the operator, so `by` is ignored."""

    def __init__(self, environment: str, rest: RestClient) -> None:
        self._environment = environment
        self._rest = rest

    async def list(self) -> Sequence[ApiKey]:
        return await self._rest.get_all(ApiKey, "keys")

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        environment: str | None = None,
        expires_in: Duration | None = None,
        by: By = OPERATOR,
    ) -> NewKey:
        if environment not in (None, self._environment):
            problem = f"a key of {self._environment!r} makes none for {environment!r:.80}"
            raise InvalidInput("environment", problem)
        lifetime = None if expires_in is None else some_time(expires_in, "expires_in")
        return await self._create(
            "keys", name=name, scopes=make_scopes(scopes), expires_in=lifetime
        )

    async def revoke(self, key_id: str, *, by: By = OPERATOR) -> ApiKey:
        path = ("keys", text(key_id, "key_id"), "revoke")
        return await self._rest.send(ApiKey, "POST", *path)

    async def rotate(
        self, key_id: str, overlap: Duration = OVERLAP, *, by: By = OPERATOR
    ) -> NewKey:
        path = ("keys", text(key_id, "key_id"), "rotate")
        return await self._create(*path, overlap=duration(overlap, "overlap"))

    async def _create(self, *path: str, **body: Any) -> NewKey:
        answer = await self._rest.send(msgspec.Raw, "POST", *path, **body)
        key = msgspec.json.decode(answer, type=ApiKey)
        return NewKey(key, msgspec.json.decode(answer, type=KeyText).key)
