"""An app for the tests of wake-ups: here to ask, in another process to work.

Polls are a minute apart unless a test says otherwise, and so are renewals: what happens sooner
has been hinted at.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from perdure import App
from perdure.engine.definition.task import Task
from perdure.engine.runtime.defaults import Defaults
from perdure.storage.contract.storage import Storage

MINUTE = timedelta(minutes=1)
PATIENT = Defaults(poll=MINUTE, lease_ttl=3 * MINUTE, concurrency=10)
READY = "ready"


class Deaf:
    """A transport that loses everything."""

    rides = False

    async def notify(self, topics: frozenset[str]) -> None:
        pass

    async def listen(self, on_topics: object) -> None:
        await asyncio.Event().wait()


class DeafApp(App):
    def open_storage(self) -> Storage:
        storage = super().open_storage()
        setattr(storage, "hint_transport", Deaf)  # noqa: B010  # not for mypy to see
        return storage


class Tasks:
    """An app with three tasks."""

    def __init__(self, url: str, defaults: Defaults = PATIENT, **options: Any) -> None:
        kind = DeafApp if options.pop("deaf", False) else App
        self.app = kind(url, defaults=defaults, **options)
        self.tell_time: Task[[], float] = self.app.task(_tell_time)
        self.sleep: Task[[float], None] = self.app.task(_sleep)


async def _tell_time() -> float:
    return time.monotonic()


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@contextmanager
def worker_process(url: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Another process with a worker, until the end of the block. `poll` and `lease_ttl` in
    seconds; the rest are options of `Tasks`."""
    command = [sys.executable, __file__, url, json.dumps(settings)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
        try:
            yield process
        finally:
            process.kill()


async def main(url: str, settings: dict[str, Any]) -> None:
    poll = timedelta(seconds=settings.pop("poll", 60))
    lease_ttl = timedelta(seconds=settings.pop("lease_ttl", 180))
    defaults = Defaults(poll=poll, lease_ttl=lease_ttl, concurrency=10)
    tasks = Tasks(url, defaults, **settings)
    async with tasks.app.worker():
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
