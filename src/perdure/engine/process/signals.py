"""Being asked to end: SIGTERM or Ctrl-C. The second time, at once.

Python calls a signal's handler on the main thread, between two bytecodes; while that thread is in
a long C call it calls nobody. So a thread of ours hears of signals too, from the C half of the
interpreter, which writes them to a socket; and it is the only one to act.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

AT_ONCE = 1
"""The exit code of a process that was asked twice."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FROM_PYTHON = b"\xff"


def on_stop_signal(first: Callable[[], None], second: Callable[[], None] | None = None) -> None:
    """Call `first`, then `second` (by default: exit at once), from a thread of their own.

    Not the loop's own signal handlers: those would wait for a handler that blocks the loop.
    """
    watch = _Watch(first, second or (lambda: os._exit(AT_ONCE)))
    threading.Thread(target=watch.run, name="perdure-signals", daemon=True).start()
    for number in SIGNALS:
        signal.signal(number, watch.on_signal)
    taken = signal.set_wakeup_fd(watch.descriptor, warn_on_full_buffer=False)
    if taken != -1:
        signal.set_wakeup_fd(taken)  # somebody else's: we do with what Python tells us
    os.register_at_fork(after_in_child=_stop_watching)


class _Watch:
    """Counts what both halves of the interpreter tell. A signal is told by one or by both."""

    def __init__(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        self._orders = [first, second]
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)

    @property
    def descriptor(self) -> int:
        return self._theirs.fileno()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # full: there is enough to read
            self._theirs.send(_FROM_PYTHON)

    def run(self) -> None:
        from_python = from_c = acted = 0
        while told := self._ours.recv(64):
            from_python += told.count(_FROM_PYTHON)
            from_c += sum(number in SIGNALS for number in told)
            while acted < min(max(from_python, from_c), len(self._orders)):
                acted += 1
                self._orders[acted - 1]()


def _stop_watching() -> None:
    """A fork is no worker: what it is told concerns nobody else."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
