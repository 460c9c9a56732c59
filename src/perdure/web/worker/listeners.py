"""Who listens for hints from afar. A listener asks, is told, and asks again; what comes meanwhile
is kept for it, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from perdure.app.app import App
from perdure.engine.runtime.wakeups import Topics
from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Clock
from perdure.web.auth.shares import Shares, make_share
from perdure.web.problems import Refusal

LONGEST_WAIT = 25.0
FORGOTTEN_AFTER = 60.0
"""Seconds after its last question a listener is taken for dead."""
MOST_EARS = 10_000
_OF_ENVIRONMENTS = ("work", "done", "schedules")
_OF_WORKERS = ("cancel", "drain")

Name = tuple[str, str, str]


class Ear:
    """One listener's: what it has not been told yet. None: anything may have changed."""

    def __init__(self, app: App) -> None:
        self._environment = app.environment
        self._topics: Topics | None = frozenset()
        self._news = asyncio.Event()
        self.heard_at = 0.0
        self.stop: Callable[[], None] = app.hub.listen(self._hear)

    async def next(self, wait: float) -> Topics | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._news.wait()
        self._news.clear()
        topics, self._topics = self._topics, frozenset()
        return topics

    def wake(self) -> None:
        self._news.set()

    def _hear(self, topics: Topics | None) -> None:
        if topics is None or self._topics is None:
            self._topics = None
        else:
            self._topics |= of_environment(topics, self._environment)
        if self._topics is None or self._topics:
            self._news.set()


class Ears:
    """All of a server's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[Name, Ear] = {}
        share = make_share(MOST_EARS)
        self._shares = Shares("listeners", share, Refusal.TOO_MANY_STREAMS, FORGOTTEN_AFTER)
        self._is_closed = False

    async def hear(self, name: Name, app: App, wait: float) -> Topics | None:
        """Raises StorageUnavailable when the server stops: come back to the next one."""
        self._check_open()
        ear = self._known.get(name) or self._new(name, app)
        ear.heard_at = self._clock.elapsed() + LONGEST_WAIT
        topics = await ear.next(min(max(wait, 0.0), LONGEST_WAIT))
        self._check_open()
        return topics

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageUnavailable("the server stops")

    def begin_stop(self) -> None:
        self._is_closed = True
        for ear in self._known.values():
            ear.stop()
            ear.wake()

    def _new(self, name: Name, app: App) -> Ear:
        self._forget()
        self._shares.acquire(*name[:2])
        ear = self._known[name] = Ear(app)
        return ear

    def _forget(self) -> None:
        dead = self._clock.elapsed() - FORGOTTEN_AFTER
        for name in [name for name, ear in self._known.items() if ear.heard_at < dead]:
            self._known.pop(name).stop()
            self._shares.release(*name[:2])


def of_environment(topics: Topics, environment: str) -> Topics:
    """Those that concern it. Whether a worker is of it, only that worker knows."""
    return frozenset(topic for topic in topics if _concerns(topic, environment))


def _concerns(topic: str, environment: str) -> bool:
    kind, _, rest = topic.partition(":")
    if kind not in _OF_ENVIRONMENTS:
        return kind in _OF_WORKERS
    return rest == environment or (kind == "work" and rest.startswith(f"{environment}:"))
