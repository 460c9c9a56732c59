"""Procrastinate, asynchronous, on psycopg. The worker runs 50 jobs at once over 20 connections,
the best of four settings tried. Finished jobs are kept (`delete_jobs="never"`, its default), and
with them the rows its triggers write into the event table. LISTEN wakes it; the poll is its
default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from procrastinate import App, PsycopgConnector

from benchmarks.peers.body import PADDING, URL, job, produce_async, wish

AT_ONCE = 50
CONNECTIONS = 20
QUEUE = "bench"

app = App(connector=PsycopgConnector(conninfo=URL, min_size=1, max_size=CONNECTIONS))


@app.task(name="noop", queue=QUEUE)
async def noop(sent: float, padding: str) -> None:
    job(sent)


async def single(sent: float) -> None:
    await noop.defer_async(sent=sent, padding=PADDING)


async def many(sent: Sequence[float]) -> None:
    await noop.batch_defer_async(*({"sent": at, "padding": PADDING} for at in sent))


async def main() -> None:
    async with app.open_async():
        match wish().word:
            case "schema":
                await app.schema_manager.apply_schema_async()
            case "worker":
                await app.run_worker_async(queues=[QUEUE], concurrency=AT_ONCE, delete_jobs="never")
            case _:
                await produce_async(single, many)


if __name__ == "__main__":
    asyncio.run(main())
