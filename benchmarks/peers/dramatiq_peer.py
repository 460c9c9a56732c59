"""Dramatiq on Redis, started by its own command: one process, 16 threads (of 1, 4
and 16 the fastest). No middleware was added or taken away, and no results are stored. It has no
bulk call.
"""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.body import PADDING, URL, job, produce, wish

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(sent: float, padding: str) -> None:
    job(sent)


def work() -> None:
    module = "benchmarks.peers.dramatiq_peer"
    command = [sys.executable, "-m", "dramatiq", module, "--processes", "1", "--threads", "16"]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    match wish().word:
        case "schema":
            pass
        case "worker":
            work()
        case _:
            produce(lambda sent: noop.send(sent, PADDING))
