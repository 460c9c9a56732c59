"""Huey on SQLite, durable: `fsync=True` is its way to `synchronous=FULL`. One worker thread; four
were not faster, since they wait for the same file. Polling every 10 to 20 ms instead of its default
of 100 ms, so that its latency is not that of its poll. Results are not stored, nothing is kept, and
a job that is taken is gone from the file: at most once, where the others say at least once.
"""

from __future__ import annotations

import logging

from huey import SqliteHuey

from benchmarks.peers.body import PADDING, URL, job, produce, wish

huey = SqliteHuey("bench", filename=URL.removeprefix("sqlite:///"), results=False, fsync=True)


@huey.task()
def noop(sent: float, padding: str) -> None:
    job(sent)


def main() -> None:
    match wish().word:
        case "schema":
            huey.pending_count()
        case "worker":
            logging.disable(logging.INFO)
            huey.create_consumer(
                workers=1,
                worker_type="thread",
                initial_delay=0.01,
                max_delay=0.02,
                backoff=1.15,
                periodic=False,
            ).run()
        case _:
            produce(lambda sent: noop(sent, PADDING))


if __name__ == "__main__":
    main()
