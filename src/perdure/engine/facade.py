"""Perdure for code that cannot await: one background loop, no twins."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from perdure.engine.io_thread import IoThread

if TYPE_CHECKING:
    from perdure.engine.app import App

T = TypeVar("T")


class SyncFacade:
    """`app.sync`: an app's coroutines on a loop of its own, opened at the first call.

    `app.sync.runs.get(id)` is `await app.runs.get(id)`, and so for `dead_letters` and `workers`;
    `app.sync.call(lambda app: …)` is for all else. `app.sync.close()`, or leaving `with app.sync:`,
    closes it; a later call opens it again.
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

    @property
    def runs(self) -> Waiting:
        return Waiting(self, "runs")

    @property
    def dead_letters(self) -> Waiting:
        return Waiting(self, "dead_letters")

    @property
    def workers(self) -> Waiting:
        return Waiting(self, "workers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what the first call opened."""
        with self._lock:
            if self._opened is not None:
                (thread, app), self._opened = self._opened, None
                thread.submit(app.__aexit__()).result()
                thread.join()

    def _open(self) -> tuple[IoThread, App]:
        with self._lock:
            if self._opened is None:
                thread = IoThread("perdure-sync")
                twin = self._app.twin()
                twin.sync = self  # what it hands out comes back here, not to another thread
                thread.submit(twin.__aenter__()).result()
                self._opened = thread, twin
            return self._opened


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
