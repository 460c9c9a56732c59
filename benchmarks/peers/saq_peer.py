"""SAQ on Redis, with hiredis and under uvloop. The worker runs 10 jobs at once, its default, which
was no slower than 100. A finished job's key is kept for ten minutes, its default. No bulk call.
"""

from __future__ import annotations

import uvloop
from saq import Queue, Worker
from saq.types import Context

from benchmarks.peers.body import PADDING, URL, job, produce_async, wish


async def noop(context: Context, *, sent: float, padding: str) -> None:
    job(sent)


async def main() -> None:
    queue = Queue.from_url(URL, name="bench")
    if wish().word == "worker":
        await Worker(queue, functions=[("noop", noop)], concurrency=10).start()
        return
    await queue.connect()

    async def single(sent: float) -> None:
        await queue.enqueue("noop", sent=sent, padding=PADDING)

    await produce_async(single)
    await queue.disconnect()


if __name__ == "__main__":
    if wish().word != "schema":
        uvloop.run(main())
