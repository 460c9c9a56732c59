"""How long it takes from the caller's COMMIT to the handler's first line.

    python -m benchmarks.enqueue

The worker is another process and polls once a minute, so that only a hint can have woken it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg

from perdure import App
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.storage import open_storage
from perdure.testing.postgres import PrivatePostgres

PATIENT = Defaults(poll=timedelta(seconds=60), lease_ttl=timedelta(seconds=180))
OPEN_FOR = (0.0, 0.02, 0.2)
"""How long a transaction stays open after the trigger, in seconds."""


def make_app(url: str) -> App:
    app = App(url, defaults=PATIENT)

    @app.task
    async def look() -> float:
        return time.time()

    return app


async def serve(url: str) -> None:
    async with make_app(url).run_all():
        await asyncio.Event().wait()


async def measure(url: str, connect: Callable[[], object], times: int) -> None:
    app = make_app(url)
    async with app:
        await (await app.tasks["look"].trigger()).result(30)
        for open_for in OPEN_FOR:
            taken = [await _one(app, connect(), open_for) for _ in range(times)]
            taken.sort()
            middle, most = statistics.median(taken), taken[int(len(taken) * 0.95)]
            name = url.partition(":")[0]
            print(f"{name:10} open {open_for * 1000:4.0f} ms: {middle:6.1f} ms, p95 {most:6.1f} ms")


async def _one(app: App, connection: object, open_for: float) -> float:
    caller: sqlite3.Connection = connection  # type: ignore[assignment]  # psycopg's is alike
    run = app.tasks["look"].using(caller).trigger_sync()
    await asyncio.sleep(open_for)
    caller.commit()
    committed = time.time()
    caller.close()
    began: float = await run.result(30)
    return (began - committed) * 1000


def compare(url: str, connect: Callable[[], object], times: int) -> None:
    asyncio.run(_migrate(url))
    worker = os.fork()
    if not worker:
        asyncio.run(serve(url))
    try:
        asyncio.run(measure(url, connect, times))
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


async def _migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    times = parser.parse_args().times
    path = Path(tempfile.mkdtemp(prefix="perdure-bench-")) / "runs.db"
    compare(f"sqlite:///{path}", lambda: sqlite3.connect(path), times)
    with PrivatePostgres.start() as server:
        url = server.create_database("bench")
        compare(url, lambda: psycopg.connect(url), times)


if __name__ == "__main__":
    main()
