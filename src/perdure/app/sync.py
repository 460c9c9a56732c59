"""Perdure for code that cannot await: one background loop, no twins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from perdure.engine.process.io_thread import IoThread
from perdure.errors import WouldBlockLoop

if TYPE_CHECKING:
    from perdure.app.app import App

T = TypeVar("T")


class SyncFacade:
    """`app.sync`: an app's coroutines on a loop of its own, opened at the first call.

    `app.sync.runs.get(id)` is `await app.runs.get(id)`, and so for `schedules`, `manifests`,
    `dead_letters`, `queues`, `limits`, `catalogue`, `workers` and `webhooks`;
    `app.sync.call(lambda app: …)` is for all else.
    `app.sync.close()`, or leaving `with app.sync:`, closes it; a later call opens it again.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._opened: tuple[IoThread, App] | None = None

    def call(self, use: Callable[[App], Awaitable[T]]) -> T:
        """What `use` gives, once it is there."""
        thread, app = self._open()

        async def run() -> T:
            return await use(app)

        return thread.submit(run()).result()

    def wait(self, use: Callable[[App], Awaitable[T]], method: str, instead: str) -> T:
        """The same, for what others have to do first. Raises WouldBlockLoop where they could
        not do it any more."""
        if asyncio._get_running_loop() is not None:
            raise WouldBlockLoop(method, instead)
        return self.call(use)

    @property
    def runs(self) -> Waiting:
        return Waiting(self, "runs")

    @property
    def schedules(self) -> Waiting:
        return Waiting(self, "schedules")

    @property
    def manifests(self) -> Waiting:
        return Waiting(self, "manifests")

    @property
    def dead_letters(self) -> Waiting:
        return Waiting(self, "dead_letters")

    @property
    def workers(self) -> Waiting:
        return Waiting(self, "workers")

    @property
    def queues(self) -> Waiting:
        return Waiting(self, "queues")

    @property
    def limits(self) -> Waiting:
        return Waiting(self, "limits")

    @property
    def catalogue(self) -> Waiting:
        return Waiting(self, "catalogue")

    @property
    def webhooks(self) -> Waiting:
        return Waiting(self, "webhooks")

    @property
    def audit_log(self) -> Waiting:
        return Waiting(self, "audit_log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what the first call opened."""
        with self._lock:
            if self._opened is not None:
                (thread, app), self._opened = self._opened, None
                try:
                    thread.submit(app.__aexit__()).result()
                finally:
                    thread.join()

    def _open(self) -> tuple[IoThread, App]:
        with self._lock:
            if self._opened is None:
                self._opened = self._make()
            return self._opened

    def _make(self) -> tuple[IoThread, App]:
        thread = IoThread("perdure-sync")
        try:
            twin = self._app.twin()
            thread.submit(twin.__aenter__()).result()
        except BaseException:
            thread.join()
            raise
        return thread, twin


class Waiting:
    """One part of an app, with the same methods, each of which waits for its answer."""

    def __init__(self, facade: SyncFacade, part: str) -> None:
        self._facade = facade
        self._part = part

    def __getattr__(self, name: str) -> Any:
        def wait(*args: Any, **kwargs: Any) -> Any:
            return self._facade.call(
                lambda app: getattr(getattr(app, self._part), name)(*args, **kwargs)
            )

        return wait
