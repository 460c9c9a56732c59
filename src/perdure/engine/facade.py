"""Perdure for code that cannot await: one background loop, no twins."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from perdure.engine.io_thread import IoThread

if TYPE_CHECKING:
    from perdure.engine.app import App

T = TypeVar("T")


class SyncFacade:
    """Runs an app's coroutines on a loop of its own, opened at the first call."""

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
                thread.submit(twin.__aenter__()).result()
                self._opened = thread, twin
            return self._opened
