"""Being asked to end: SIGTERM or Ctrl-C. The second time, at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

AT_ONCE = 1
"""The exit code of a process that was asked twice."""


def on_stop_signal(first: Callable[[], None], second: Callable[[], None] | None = None) -> None:
    """Call `first`, then `second` (by default: exit at once), from the main thread.

    Not the loop's own signal handlers: those would wait for a handler that blocks the loop.
    """
    asked = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            first()
        elif second is not None:
            second()
        else:
            os._exit(AT_ONCE)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
