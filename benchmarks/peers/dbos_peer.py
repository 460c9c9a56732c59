"""DBOS, on PostgreSQL and on SQLite: a queue of workflows without steps. The queue is polled every
20 ms instead of every second, its default, so that its latency is not that of its poll; at most
100 workflows a process, 32 threads, 20 connections: the best of five tried. It has no bulk call, so
a bulk call is 500 times its `enqueue_in_transaction` in one transaction (PostgreSQL only).
SQLite is used as DBOS opens it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks.peers.body import PADDING, URL, job, produce, wish

NAME, QUEUE = "noop", "bench"
VERSION = "1"
ADDRESS = URL.replace("postgresql://", "postgresql+psycopg://")


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": ADDRESS,
            "log_level": "ERROR",
            "application_version": VERSION,
            "executor_id": f"executor-{os.getpid()}",
            "sys_db_pool_size": 20,
            "max_executor_threads": 32,
        }
    )

    @DBOS.workflow(name=NAME)
    def noop(sent: float, padding: str) -> None:
        job(sent)

    DBOS.listen_queues([QUEUE])
    DBOS.launch()
    DBOS.register_queue(
        QUEUE, worker_concurrency=100, polling_interval_sec=0.02, on_conflict="always_update"
    )


def enqueue() -> None:
    client = DBOSClient(system_database_url=ADDRESS, application_name="bench")
    engine = sqlalchemy.create_engine(ADDRESS)
    options = {"queue_name": QUEUE, "workflow_name": NAME, "app_version": VERSION}

    def many(sent: Sequence[float]) -> None:
        with engine.begin() as connection:
            for at in sent:
                client.enqueue_in_transaction(connection, options, at, PADDING)

    in_bulk = None if ADDRESS.startswith("sqlite") else many
    produce(lambda sent: client.enqueue(options, sent, PADDING), in_bulk)


def main() -> None:
    match wish().word:
        case "schema":
            launch()
        case "worker":
            launch()
            asked = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: asked.set())
            asked.wait()
        case _:
            enqueue()
    os._exit(0)  # its threads would take seconds to end


if __name__ == "__main__":
    main()
