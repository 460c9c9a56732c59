"""The thread that writes goes first. All others wait for it, and it for the interpreter's lock:
SQLite gives that up in every statement, and a busy thread takes its time to give it back.

So while SQLite works, whoever has the lock is asked for it soon; and what the writer does between
two statements is over sooner than anybody else would have asked.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SOON = 0.00001
"""Seconds after which the writer asks for the lock: at once, as far as timers go. Others change
places as often meanwhile, which costs them less than the writer's waiting costs all. So they do
while another process holds the file."""
LATE = 0.005
"""Seconds after which others get it from the writer: as long as Python has it by itself."""


class Precedence:
    """Of all writers of a process: how soon threads change places is one setting for all. Whoever
    else changes it while somebody writes has done so in vain."""

    def __init__(self) -> None:
        self._usual = sys.getswitchinterval()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._writers = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """While somebody writes. Whoever ends last leaves it as it was."""
        with self._lock:
            if not self._writers:
                self._usual = sys.getswitchinterval()
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1
                if not self._writers:
                    sys.setswitchinterval(self._usual)

    def forget_the_parent(self) -> None:
        """In a forked child: whoever wrote there does not write here."""
        if self._writers:
            sys.setswitchinterval(self._usual)
        self._begin()


PRECEDENCE = Precedence()
os.register_at_fork(after_in_child=PRECEDENCE.forget_the_parent)


class WritersConnection(sqlite3.Connection):
    """Only to be used while precedence is taken."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        return _hastened(super().execute, statement)

    def executemany(self, *statement: Any) -> sqlite3.Cursor:
        return _hastened(super().executemany, statement)


def _hastened(run: Callable[..., sqlite3.Cursor], statement: tuple[Any, ...]) -> sqlite3.Cursor:
    sys.setswitchinterval(SOON)
    try:
        return run(*statement)
    finally:
        sys.setswitchinterval(LATE)
