"""The keys a server knows, and who used them. Read again every other second, so that a revoked
key is dead everywhere within that time; at once when somebody shows one that is not known."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Self

from perdure.engine.app import App
from perdure.engine.credential import read_credential
from perdure.engine.keys import ApiKey, Keys, is_opened, read_keys
from perdure.engine.service import Service
from perdure.errors import StorageError
from perdure.web.problems import Refusal, RequestRefused

REFRESH = timedelta(seconds=2)
WRITE_USES = timedelta(seconds=30)

_ADVICE = "show a key: Authorization: Bearer pk_…; `perdure keys create` makes one"


class Keyring(Service):
    """Between passes it answers from memory."""

    def __init__(self, app: App) -> None:
        super().__init__(app.clock)
        self._app = app
        self._known: dict[str, ApiKey] = {}
        self._uses: dict[str, datetime] = {}
        self._written_at = app.clock.elapsed()
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there has never been a key."""
        return not self._known

    @property
    def environments(self) -> set[str]:
        now = self._app.clock.now()
        return {key.environment for key in self._known.values() if key.is_valid(now)}

    async def __aenter__(self) -> Self:
        await self.refresh()
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()
        if self._uses:
            with suppress(StorageError):
                await self.write_uses()

    async def run_once(self) -> None:
        await self.refresh()
        if self._uses and self._app.clock.elapsed() - self._written_at > WRITE_USES.total_seconds():
            await self.write_uses()

    async def rest(self) -> None:
        await self._clock.sleep(REFRESH)

    async def refresh(self) -> None:
        """However many ask at once, there is one reader: one that begins after they asked, since
        one before may have missed what they ask for."""
        before = self._reading
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self._reading is before:
            self._reading = asyncio.create_task(self._read())
        assert self._reading is not None
        await asyncio.shield(self._reading)

    async def write_uses(self) -> None:
        uses, self._uses = self._uses, {}
        self._written_at = self._app.clock.elapsed()
        await Keys(self._app).used(uses)

    async def key_of(self, header: str) -> ApiKey:
        """The key that an `Authorization` header shows. Raises RequestRefused, the same for
        every reason but a wrong form."""
        scheme, _, text = header.partition(" ")
        credential = read_credential(text.strip()) if scheme.lower() == "bearer" else None
        if credential is None:
            raise RequestRefused(Refusal.NOT_AUTHENTICATED, f"that is not a key; {_ADVICE}")
        # For every reason, so that an unknown id takes as long as a wrong secret.
        if not is_opened(self._known.get(credential.id), credential, self._app.time()):
            await self.refresh()
        key, now = self._known.get(credential.id), self._app.time()
        if not is_opened(key, credential, now) or key is None:
            problem = "the key is unknown, revoked or expired"
            raise RequestRefused(Refusal.NOT_AUTHENTICATED, problem)
        self._uses[key.id] = now
        return key

    async def _read(self) -> None:
        self._known = {key.id: key for key in await read_keys(self._app.storage)}


def no_key() -> RequestRefused:
    return RequestRefused(Refusal.NOT_AUTHENTICATED, f"there is no key; {_ADVICE}")
