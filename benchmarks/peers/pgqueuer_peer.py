"""PgQueuer, on asyncpg under uvloop. The worker takes batches of 500, as large as our claims, the
best of five settings tried. Concurrent callers share a pool of 10 connections, since one asyncpg
connection serves one caller at a time. It keeps three log rows a job, as it does by default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.models import Job

from benchmarks.peers.body import PADDING, URL, job, produce_async, wish

BATCH = 500
CONNECTIONS = 10
NAME = "noop"


def payload(sent: float) -> bytes:
    return json.dumps({"sent": sent, "padding": PADDING}).encode()


async def work() -> None:
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queuer.entrypoint(NAME)
    async def noop(asked: Job) -> None:
        job(json.loads(asked.payload or b"{}")["sent"])

    await queuer.run(dequeue_timeout=timedelta(seconds=5), batch_size=BATCH)


async def enqueue(queries: Queries) -> None:
    async def single(sent: float) -> None:
        await queries.enqueue(NAME, payload(sent), 0)

    async def many(sent: Sequence[float]) -> None:
        count = len(sent)
        await queries.enqueue([NAME] * count, [payload(at) for at in sent], [0] * count)

    await produce_async(single, many)


async def main() -> None:
    if wish().word == "worker":
        await work()
    elif wish().how == "concurrent":
        async with asyncpg.create_pool(URL, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
            await enqueue(Queries(AsyncpgPoolDriver(pool)))
    else:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
        if wish().word == "schema":
            await queries.install()
        else:
            await enqueue(queries)


if __name__ == "__main__":
    uvloop.run(main())
