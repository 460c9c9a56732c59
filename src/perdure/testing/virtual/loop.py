"""The kit's event loop: real sockets and threads, virtual time.

It runs what is ready, in order, and then comes back: whoever drives it decides whether time may
jump, or whether something outside (a thread, a socket) must be waited for first.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from perdure.engine.runtime.current_run import _current
from perdure.testing.virtual.nested import outside_of_any_loop
from perdure.testing.virtual.time import VirtualLoop

is_guest: contextvars.ContextVar[bool] = contextvars.ContextVar("perdure_guest", default=False)
"""Whether this is a coroutine of the test, which the kit's loop only hosts."""


class KitLoop(VirtualLoop, asyncio.SelectorEventLoop):
    """Driven by `run_ready`, even from inside itself."""

    _selector: Any
    _process_events: Any

    def __init__(self, now: float) -> None:
        super().__init__()
        self._now = now
        self._until: Callable[[], bool] = lambda: False
        self._calls_outside: set[asyncio.Future[Any]] = set()

    def run_ready(self, until: Callable[[], bool]) -> None:
        """Until `until` says so, or until nothing is ready."""
        with outside_of_any_loop():
            if not self.is_running():
                self._until = until
                self.run_forever()
                return
            asyncio._set_running_loop(self)
            try:
                self._run_while_ready(until)
            finally:
                asyncio._set_running_loop(None)

    def leap(self, when: float) -> None:
        """Time goes on, not through every timer on the way: each that is due then fires once."""
        self._now = max(self._now, when)

    def next_timer(self) -> float | None:
        self._drop_cancelled_timers()
        return self._scheduled[0].when() if self._scheduled else None

    def next_timer_of_a_handler(self) -> float | None:
        """What the code under test sleeps for, or will be interrupted by."""
        timers = [timer.when() for timer in self._scheduled if _is_of_a_handler(timer)]
        return min(timers, default=None)

    @property
    def awaits_a_thread(self) -> bool:
        return bool(self._calls_outside)

    @property
    def watches_files(self) -> bool:
        """Sockets and pipes, besides the one by which threads wake this loop."""
        return len(self._selector.get_map()) > 1

    def wait_outside(self, seconds: float) -> bool:
        """Wait, in real time, for a thread or a socket; whether something came."""
        self._process_events(self._selector.select(seconds))
        return bool(self._ready)

    def run_in_executor(  # type: ignore[override]  # whatever the arguments
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *arguments)
        self._calls_outside.add(future)
        future.add_done_callback(self._calls_outside.discard)
        return future

    def end(self) -> None:
        with outside_of_any_loop():
            super().end()

    def _run_once(self) -> None:
        if self._ending:
            self._run_all()
            return
        self._run_while_ready(self._until)
        self.stop()

    def _run_while_ready(self, until: Callable[[], bool]) -> None:
        while not until() and self._has_ready():
            self._step(self._ready.popleft())

    def _has_ready(self) -> bool:
        if not self._ready:
            self.wait_outside(0)
            self._take_due_timers()
        return bool(self._ready)


def _is_of_a_handler(timer: asyncio.TimerHandle) -> bool:
    if timer.cancelled():
        return False
    context = timer._context  # type: ignore[attr-defined]  # in every handle
    return _current in context or bool(context.get(is_guest))
