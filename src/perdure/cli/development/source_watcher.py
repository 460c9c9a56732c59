"""Find out that a source differs from what this process has loaded.

The watcher compares digests of contents, so neither the resolution of file times nor equal lengths
can hide a change, and a source that changes between its loading and the first check counts too.
`watchfiles` tells when to compare. The watcher also compares every second, for directories without
notification, such as network mounts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.output.answer import CannotStart
from perdure.engine.tasks.source_loader import Digests, digest_of

if TYPE_CHECKING:
    from watchfiles.main import FileChange

CHECK_INTERVAL_S = 1.0
EVENT_TIMEOUT_MS = 100
MAX_GROUPING_MS = 200
"""How long events are collected at most: a database beside the sources changes all the time."""
MAX_FILES = 5000
SKIPPED_DIRECTORIES = ("node_modules", "__pycache__")


def require_watchfiles() -> None:
    """Raise CannotStart unless watchfiles is installed."""
    try:
        import watchfiles  # noqa: F401  # only whether it is there
    except ModuleNotFoundError as error:
        advice = "pip install 'perdure[server]', or use --no-reload"
        raise CannotStart(f"reloading needs {error.name}: {advice}") from error


class SourceWatcher:
    """Watches the sources in `loaded`, which may grow, from a thread of its own."""

    def __init__(self, loaded: Digests) -> None:
        self._loaded = loaded
        self._directory = os.getcwd()
        self._before: Digests = {}
        self._watches_directory = False
        self._stopping = threading.Event()
        self._watched_directories: set[str] = set()
        self._events: Iterator[set[FileChange]] = iter(())
        # It logs each event: one more event, if the log is a file in a watched directory.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)

    def record_directory(self) -> None:
        """Record the sources below the current directory, before any is loaded."""
        self._before = _read_digests(_list_sources(self._directory))

    def watch_directory(self) -> None:
        """Watch all sources below the current directory too: changed ones, and new ones."""
        self._watches_directory = True

    def wait_for_change(self) -> str | None:
        """Return the path of a changed source, or None after `stop`."""
        while not self._stopping.is_set():
            if (path := self._find_change()) is not None:
                return path
            self._wait_for_event()
        return None

    def stop(self) -> None:
        self._stopping.set()

    def _find_change(self) -> str | None:
        expected = dict(self._loaded)
        current = _read_digests(expected)
        if self._watches_directory:
            expected = self._before | expected
            current |= _read_digests(set(_list_sources(self._directory)) - current.keys())
        for path in expected.keys() | current.keys():
            if expected.get(path) != current.get(path):
                return path
        return None

    def _wait_for_event(self) -> None:
        """Return soon after an event of a source, and after CHECK_INTERVAL_S in any case."""
        is_new = self._listen()
        # A change may precede the first moment of listening: compare once more right after it.
        deadline = time.monotonic() + (0 if is_new else CHECK_INTERVAL_S)
        try:
            for events in self._events:
                is_due = time.monotonic() >= deadline
                if is_due or any(path.endswith(".py") for _, path in events):
                    return
        except (OSError, RuntimeError):  # a directory is gone, or the system's watches are used up
            self._watched_directories = set()
            self._stopping.wait(CHECK_INTERVAL_S)

    def _listen(self) -> bool:
        """Listen to the directories of the watched sources. Return whether they are new."""
        directories = self._find_directories()
        if directories == self._watched_directories:
            return False
        from watchfiles import watch

        self._watched_directories = directories
        self._events = watch(
            *directories,
            watch_filter=None,
            recursive=False,
            debounce=MAX_GROUPING_MS,
            rust_timeout=EVENT_TIMEOUT_MS,
            yield_on_timeout=True,
            stop_event=self._stopping,
        )
        return True

    def _find_directories(self) -> set[str]:
        """Directories, not files: many editors replace a file instead of writing to it."""
        paths = [*self._loaded]
        if self._watches_directory:
            paths += _list_sources(self._directory)
        parents = {os.path.dirname(os.path.realpath(path)) for path in paths}
        return {path for path in {self._directory, *parents} if os.path.isdir(path)}


def _read_digests(paths: Iterable[str]) -> Digests:
    """Return the digest of each source that exists."""
    digests: Digests = {}
    for path in paths:
        try:
            digests[path] = digest_of(Path(path).read_bytes())
        except OSError:  # deleted, or about to be replaced
            continue
    return digests


def _list_sources(directory: str) -> list[str]:
    paths: list[str] = []
    for folder, folders, files in os.walk(directory):
        folders[:] = [it for it in folders if _may_hold_sources(os.path.join(folder, it))]
        paths += [os.path.join(folder, name) for name in files if name.endswith(".py")]
        if len(paths) >= MAX_FILES:
            break
    return paths[:MAX_FILES]


def _may_hold_sources(folder: str) -> bool:
    name = os.path.basename(folder)
    is_environment = os.path.exists(os.path.join(folder, "pyvenv.cfg"))
    return not (name.startswith(".") or name in SKIPPED_DIRECTORIES or is_environment)
