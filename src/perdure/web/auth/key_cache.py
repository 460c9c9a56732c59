"""The keys a server knows, and who used them. Read again every other second, so that a revoked
key is dead everywhere within that time; at once when somebody shows one that is not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from perdure.app.app import App
from perdure.engine.operators.credential import read_credential
from perdure.engine.operators.keys import ApiKey, Keys, Secret, find_secret, is_opened, read_keys
from perdure.engine.runtime.service import Service
from perdure.errors import StorageError
from perdure.web.auth.caller import Caller
from perdure.web.auth.key_expiry import current_secret, find_end, find_end_instant
from perdure.web.problems import Refusal, RequestRefused

REFRESH = timedelta(seconds=2)
WRITE_USES = timedelta(seconds=30)
MIN_TIMER_S = 0.01
"""A clock that runs behind the loop's is asked again after this long."""

T = TypeVar("T")
OnEnd = Callable[[RequestRefused], None]

_ADVICE = "show a key in the header Authorization, after `Bearer`; `perdure keys create` makes one"


class Keyring(Service):
    """Between passes it answers from memory."""

    def __init__(self, app: App) -> None:
        super().__init__(app.clock)
        self._app = app
        self._known: dict[str, ApiKey] = {}
        self._uses: dict[str, datetime] = {}
        self._written_at = app.clock.elapsed()
        self._reading: asyncio.Task[None] | None = None
        self._watches: set[Watch] = set()

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
        try:
            await self.refresh()
        finally:
            self._check_watches()  # keys expire also while the storage does not answer
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
            self._reading.add_done_callback(_retrieve_error)
        assert self._reading is not None
        await asyncio.shield(self._reading)

    async def write_uses(self) -> None:
        uses, self._uses = self._uses, {}
        self._written_at = self._app.clock.elapsed()
        await Keys(self._app.runtime).used(uses)

    async def key_of(self, header: str) -> tuple[ApiKey, Secret]:
        """The key that an `Authorization` header shows, and which of its secrets. Raises
        RequestRefused; only a caller that shows a secret of the key learns why that has ended."""
        scheme, _, text = header.partition(" ")
        credential = read_credential(text.strip()) if scheme.lower() == "bearer" else None
        if credential is None:
            raise RequestRefused(Refusal.NOT_AUTHENTICATED, f"that is not a key; {_ADVICE}")
        # For every reason, so that an unknown id takes as long as a wrong secret.
        if not is_opened(self._known.get(credential.id), credential, self._app.time()):
            await self.refresh()
        key, now = self._known.get(credential.id), self._app.time()
        secret = find_secret(key, credential)
        if key is None or secret is None:
            raise _unknown_key()
        end = find_end(key, secret, now)
        if end is not None:
            raise end
        self._uses[key.id] = now
        return key, secret

    def find_end(self, caller: Caller) -> RequestRefused | None:
        """Return why the caller would be refused if it came again now, or None."""
        if caller.secret is None:
            return None if self.is_empty else no_key()
        key = self._known.get(caller.id)
        if key is None:
            return _unknown_key()
        return find_end(key, current_secret(key, caller.secret), self._app.time())

    def seconds_left(self, caller: Caller) -> float | None:
        """Return how long the caller's key stays valid if nothing changes; None: for ever."""
        key = self._known.get(caller.id)
        if key is None or caller.secret is None:
            return None
        ends_at = find_end_instant(key, current_secret(key, caller.secret))
        return None if ends_at is None else (ends_at - self._app.time()).total_seconds()

    def watch(self, caller: Caller, on_end: OnEnd) -> Watch:
        """Call `on_end` once, when the caller's key is revoked, expires or is replaced; maybe at
        once. Close the watch when the request ends."""
        watch = Watch(self, caller, on_end)
        self._watches.add(watch)
        watch.check()
        return watch

    async def run_while_valid(self, caller: Caller, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Cancel it and raise RequestRefused when the key ends."""
        task = asyncio.ensure_future(work)
        ends: list[RequestRefused] = []

        def cancel(end: RequestRefused) -> None:
            ends.append(end)
            task.cancel()

        try:
            with closing(self.watch(caller, cancel)):
                await asyncio.wait([task])
        finally:
            task.cancel()
        if ends and task.cancelled():
            raise ends[0]
        return task.result()

    async def _read(self) -> None:
        self._known = {key.id: key for key in await read_keys(self._app.storage)}
        self._check_watches()

    def remove_watch(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def _check_watches(self) -> None:
        for watch in list(self._watches):
            watch.check()


def _retrieve_error(reading: asyncio.Task[None]) -> None:
    """Each caller that awaits the read gets its error; asyncio would log it if none is left."""
    if not reading.cancelled():
        reading.exception()


class Watch:
    """Tells one request that its key has ended. Checked when keys are read, and when it is due."""

    def __init__(self, keyring: Keyring, caller: Caller, on_end: OnEnd) -> None:
        self._keyring = keyring
        self._caller = caller
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Call `on_end` and close, if the key has ended."""
        end = self._keyring.find_end(self._caller)
        if end is None:
            return self._start_timer()
        self.close()
        self._on_end(end)

    def close(self) -> None:
        self._stop_timer()
        self._keyring.remove_watch(self)

    def _start_timer(self) -> None:
        """Only for an end before the next reading of keys could notice it."""
        self._stop_timer()
        left = self._keyring.seconds_left(self._caller)
        if left is not None and left <= 2 * REFRESH.total_seconds():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(left, MIN_TIMER_S), self.check)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _unknown_key() -> RequestRefused:
    problem = "the key is unknown, revoked or expired"
    return RequestRefused(Refusal.NOT_AUTHENTICATED, problem)


def no_key() -> RequestRefused:
    return RequestRefused(Refusal.NOT_AUTHENTICATED, f"there is no key; {_ADVICE}")
