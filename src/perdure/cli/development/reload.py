"""Restart this process, by exec, when a source that it has loaded changes.

`perdure.engine.tasks.source_loader` loads sources and records their contents, and never uses
bytecode for them; `perdure.cli.development.source_watcher` compares the record with the files. So a
change is neither missed nor answered with stale bytecode, however soon it follows another one and
whatever its length.

A restarted process whose source cannot be loaded waits for a change. The modules that it lacks are
not known, so it watches every source below the current directory then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from perdure.cli.development.source_watcher import SourceWatcher
from perdure.engine.tasks.source_loader import Digests

RESTARTED_VARIABLE = "PERDURE_DEV_RESTARTED"
"""Set for a process that a reloader has restarted."""
STOP_TIMEOUT_S = 5.0


class Reloader:
    """Watches from `start` on. Sends SIGTERM to this process after a change, but not before `arm`.

    `loaded` are the digests of the loaded sources, as `ignore_bytecode` returns them.
    """

    def __init__(self, loaded: Digests, on_message: Callable[[str], None]) -> None:
        self._on_message = on_message
        self.is_restarted = RESTARTED_VARIABLE in os.environ
        self.arguments: tuple[str, ...] = ()
        """Added to the command line of the restarted process."""
        self._directory = os.getcwd()
        self._watcher = SourceWatcher(loaded)
        self._thread = threading.Thread(target=self._watch, name="perdure-reload", daemon=True)
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._is_armed = False

    @property
    def needs_restart(self) -> bool:
        return self._changed.is_set()

    def start(self) -> None:
        """Start to watch. Call it before any source is loaded."""
        if self.is_restarted:
            self._watcher.record_directory()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, so that the interpreter does not exit during a call of watchfiles."""
        self._watcher.stop()
        self._thread.join(STOP_TIMEOUT_S)

    def arm(self) -> None:
        """Allow SIGTERM: from now on this process handles it."""
        with self._lock:
            self._is_armed = True
            if self.needs_restart:
                _terminate()

    def wait(self) -> None:
        """Block until any source below the current directory changes."""
        self._watcher.watch_directory()
        self._changed.wait()

    def restart(self) -> NoReturn:
        os.environ[RESTARTED_VARIABLE] = "1"
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *self.arguments])

    def _watch(self) -> None:
        path = self._watcher.wait_for_change()
        if path is None:
            return
        self._on_message(f"{os.path.relpath(path, self._directory)} has changed; restarting")
        with self._lock:
            self._changed.set()
            if self._is_armed:
                _terminate()


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
