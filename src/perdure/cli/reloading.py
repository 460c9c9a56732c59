"""Beginning again when source changes: the same process, by exec.

Looked at are the files of modules that were loaded, except those of installed packages; by polling,
since that works everywhere. What cannot be loaded any more is not known by its modules: then every
source file below this directory is looked at.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

INTERVAL = 0.5
MOST_FILES = 5000
AGAIN = "PERDURE_DEV_BEGUN_AGAIN"
"""Set for a process that has begun before."""
NOT_OURS = ("site-packages", "dist-packages")
NOT_SOURCE = ("node_modules", "__pycache__")

Stamp = tuple[int, int]


class Reloading:
    """Watches from `start` on, and asks the process to stop once `arm` says that it can."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.is_again = AGAIN in os.environ
        self.arguments: tuple[str, ...] = ()
        """More for the command line of the next life."""
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._is_armed = False
        self._everything = False
        self._stamps: dict[str, Stamp | None] = {}

    @property
    def is_wanted(self) -> bool:
        return self._changed.is_set()

    def start(self) -> None:
        """Before anything is loaded: what changes meanwhile counts, too."""
        self._stamps = {path: _stamp(path) for path in _sources(os.getcwd())}
        threading.Thread(target=self._watch, name="perdure-reload", daemon=True).start()

    def arm(self) -> None:
        """From now on SIGTERM ends this process well."""
        with self._lock:
            self._is_armed = True
            if self.is_wanted:
                _stop()

    def wait(self) -> None:
        """Until anything here changes."""
        self._everything = True
        self._changed.wait()

    def begin_again(self) -> NoReturn:
        os.environ[AGAIN] = "1"
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *self.arguments])

    def _watch(self) -> None:
        while (path := self._look()) is None:
            self._changed.wait(INTERVAL)
        self._say(f"{os.path.relpath(path)} has changed; beginning again")
        with self._lock:
            self._changed.set()
            if self._is_armed:
                _stop()

    def _look(self) -> str | None:
        """A file that is not as it was when it was first seen."""
        files = set(_loaded())
        if self._everything:
            files |= set(_sources(os.getcwd()))
        for path in files:
            stamp = _stamp(path)
            if self._stamps.setdefault(path, stamp) != stamp:
                return path
        return None


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:  # deleted, or about to be replaced
        return None
    return found.st_mtime_ns, found.st_size


def _loaded() -> Iterator[str]:
    libraries = tuple(os.path.realpath(it) for it in (os.path.dirname(os.__file__), sys.prefix))
    for module in list(sys.modules.values()):
        path: str | None = getattr(module, "__file__", None)
        if path is None or not path.endswith(".py"):
            continue
        path = os.path.realpath(path)
        if not path.startswith(libraries) and not any(it in path for it in NOT_OURS):
            yield path


def _sources(directory: str) -> Iterator[str]:
    count = 0
    for folder, folders, files in os.walk(directory):
        folders[:] = [it for it in folders if _is_source(os.path.join(folder, it))]
        for name in files:
            if name.endswith(".py") and count < MOST_FILES:
                count += 1
                yield os.path.realpath(os.path.join(folder, name))


def _is_source(folder: str) -> bool:
    name = os.path.basename(folder)
    is_environment = os.path.exists(os.path.join(folder, "pyvenv.cfg"))
    return not (name.startswith(".") or name in NOT_SOURCE or is_environment)
