"""What a job does in every Python contender, and how jobs are asked for.

The job does nothing, but it can be counted from outside for free: each process writes its count
into a small mapped file. `sent` is the moment just before the job was asked for, or 0.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

PADDING = "x" * 100
"""So that rows are not unrealistically small."""

CALL = 500
"""How many jobs are given to one bulk call."""

CALLERS = 100
PAUSE = 0.05
LAYOUT = struct.Struct("<qdd")
URL = os.environ.get("BENCH_URL", "")
TALLY = Path(os.environ.get("BENCH_TALLY", "."))

Single = Callable[[float], object]
Many = Callable[[Sequence[float]], object]
AsyncSingle = Callable[[float], Awaitable[object]]
AsyncMany = Callable[[Sequence[float]], Awaitable[object]]


class Tally:
    """The jobs of this process: how many, the first one's moment, the last one's."""

    def __init__(self) -> None:
        self.process = os.getpid()
        with (TALLY / f"count.{self.process}").open("w+b") as file:
            file.write(bytes(LAYOUT.size))
            file.flush()
            self._memory = mmap.mmap(file.fileno(), LAYOUT.size)
        self._samples = (TALLY / f"latency.{self.process}").open("a", buffering=1)
        self._numbers = itertools.count(1)
        self._first = time.monotonic()
        self._lock = threading.Lock()

    def count(self, sent: float) -> None:
        # One clock for all processes of a machine, on Linux.
        now = time.monotonic()
        if sent:
            self._samples.write(f"{now - sent}\n")
        with self._lock:
            LAYOUT.pack_into(self._memory, 0, next(self._numbers), self._first, now)


_tally: Tally | None = None
_making = threading.Lock()


def job(sent: float) -> None:
    """The body of every job."""
    global _tally
    if _tally is None or _tally.process != os.getpid():  # some peers fork after importing
        with _making:
            if _tally is None or _tally.process != os.getpid():
                _tally = Tally()
    _tally.count(sent)


class Wish(NamedTuple):
    """What the command line asks a producer for."""

    word: str
    how: str
    number: int


def wish() -> Wish:
    match sys.argv[1:]:
        case ["enqueue", how, count]:
            return Wish("enqueue", how, int(count))
        case ["latency" | "results" | "lives" as word, count]:
            return Wish(word, "single", int(count))
        case [word]:
            return Wish(word, "", 0)
        case other:
            raise SystemExit(f"unknown words: {' '.join(other)}")


def produce(single: Single, many: Many | None = None) -> None:
    """Ask for jobs as the command line says, from ordinary code."""
    asked = wish()
    began = time.monotonic()
    if asked.word == "latency":
        for _ in range(asked.number):
            single(time.monotonic())
            time.sleep(PAUSE)
    elif asked.how == "concurrent":
        with ThreadPoolExecutor(CALLERS) as callers:
            began = time.monotonic()
            list(callers.map(single, [0.0] * asked.number))
    elif asked.how == "many" and many is not None:
        for sent in calls(asked.number):
            many(sent)
    else:
        for _ in range(asked.number):
            single(0.0)
    report(asked.number, began)


async def produce_async(single: AsyncSingle, many: AsyncMany | None = None) -> None:
    """Ask for jobs as the command line says, from a coroutine."""
    asked = wish()
    began = time.monotonic()
    if asked.word == "latency":
        for _ in range(asked.number):
            await single(time.monotonic())
            await asyncio.sleep(PAUSE)
    elif asked.how == "concurrent":
        await _by_callers(single, asked.number)
    elif asked.how == "many" and many is not None:
        for sent in calls(asked.number):
            await many(sent)
    else:
        for _ in range(asked.number):
            await single(0.0)
    report(asked.number, began)


async def _by_callers(single: AsyncSingle, count: int) -> None:
    """Each caller asks for one job after another, and awaits each."""
    jobs = iter(range(count))

    async def caller() -> None:
        for _ in jobs:
            await single(0.0)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def calls(count: int) -> Iterator[list[float]]:
    for begin in range(0, count, CALL):
        yield [0.0] * min(CALL, count - begin)


def report(count: int, began: float, **more: object) -> None:
    """The last line of a producer's output is for the driver."""
    ended = time.monotonic()
    print(json.dumps({"count": count, "began": began, "ended": ended, **more}), flush=True)
