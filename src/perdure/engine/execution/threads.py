"""Threads for handlers: started when needed, used again, and no reason to stay at exit.

`ThreadPoolExecutor` joins its threads when the interpreter ends; one handler that never ends
would keep the process alive for ever.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable

Job = Callable[[], Callable[[], None]]
"""Does its work, and gives back how to say so: said once the thread is free for another."""


class Threads:
    """As many as there ever were jobs at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._closed = False

    def submit(self, job: Job) -> None:
        with self._lock:
            thread = self._idle.pop() if self._idle else self._new()
        thread.jobs.put(job)

    def close(self) -> None:
        """Idle threads end now, busy ones when their job does."""
        with self._lock:
            self._closed = True
            for thread in self._idle:
                thread.jobs.put(None)
            self._idle.clear()

    def rest(self, thread: _Thread) -> None:
        """For the threads: nothing more to do."""
        with self._lock:
            if self._closed:
                thread.jobs.put(None)
            else:
                self._idle.append(thread)

    def _new(self) -> _Thread:
        thread = _Thread(self, f"{self._name}-{next(self._numbers)}")
        thread.start()
        return thread


class _Thread(threading.Thread):
    def __init__(self, pool: Threads, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._pool = pool

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            say = job()
            self._pool.rest(self)
            say()
