"""Perdure, on PostgreSQL and on SQLite, with everything on: history, leases, fencing, maintenance.

The worker is `perdure worker` as an operator starts it. For throughput there are 2,000 slots on
PostgreSQL and 1,000 on SQLite, the best of five settings tried, shared by the worker processes;
claims are of 500 runs, as large as other contenders' batches. Latency is measured at the default
settings. SQLite is written with `synchronous=FULL`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.body import (
    PADDING,
    PAUSE,
    TALLY,
    URL,
    job,
    produce_async,
    report,
    wish,
)
from perdure import App


class Statements:
    """How many statements this process has sent so far, from any thread, in a file."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._file = os.open(TALLY / f"statements.{os.getpid()}", os.O_WRONLY | os.O_CREAT)

    def __call__(self, _: str) -> None:
        with self._lock:
            self._count += 1
            os.pwrite(self._file, str(self._count).encode(), 0)


options: dict[str, Any] = {}
if os.environ.get("BENCH_STATEMENTS"):
    options["on_statement"] = Statements()
app = App(URL or None, **options)


@app.task
async def noop(sent: float, padding: str) -> None:
    job(sent)


async def single(sent: float) -> None:
    await noop.trigger(sent, PADDING)


async def many(sent: Sequence[float]) -> None:
    await noop.trigger_many([{"sent": at, "padding": PADDING} for at in sent])


async def results(count: int) -> None:
    """Each run's result awaited before the next one is asked for."""
    began = time.monotonic()
    seconds = []
    for _ in range(count):
        asked = time.monotonic()
        run = await noop.trigger(0.0, PADDING)
        await run.result(60)
        seconds.append(time.monotonic() - asked)
        await asyncio.sleep(PAUSE)
    report(count, began, seconds=seconds)


async def main() -> None:
    if wish().word == "schema":
        storage = app.open_storage()
        await storage.migrate()
        await storage.close()
        return
    async with app:
        if wish().word == "results":
            await results(wish().number)
        else:
            await produce_async(single, many)


def work() -> None:
    command = [sys.executable, "-m", "perdure", "worker", "benchmarks.peers.perdure_peer:app"]
    slots = os.environ.get("BENCH_CONCURRENCY")
    if slots:
        command += ["--concurrency", str(int(slots) // int(os.environ["BENCH_WORKERS"]))]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    if wish().word == "worker":
        work()
    else:
        asyncio.run(main())
