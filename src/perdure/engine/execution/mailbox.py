"""Calls from one loop or thread to another loop, in order and in batches: one wake-up a batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Mailbox:
    """Where calls for `loop` are put, from anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_waking = False
        self._is_planned = False

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Never waits. From a loop, the wake-up is sent at the end of its turn, so that the
        whole turn's calls go together. A thread sends its own: that turn may be a long one."""
        self._calls.append((function, arguments))
        if self._is_waking:
            return
        here = asyncio._get_running_loop()
        if here is None:
            self._wake()
        elif not self._is_planned:
            self._is_planned = True
            here.call_soon(self._deliver if here is self.loop else self._wake)

    def _wake(self) -> None:
        self._is_waking = True
        with suppress(RuntimeError):  # that loop has been closed: nobody wants to know any more
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_waking = self._is_planned = False
        try:
            while self._calls:
                function, arguments = self._calls.popleft()
                function(*arguments)
        finally:
            if self._calls:  # one of them raised; the others are not to blame
                self.loop.call_soon(self._deliver)
