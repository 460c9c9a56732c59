"""CPU time of every callback of an event loop, measured inside a server process.

`python tests/loop_cpu.py REPORT server --port 0 …` is `perdure server …` whose event-loop callbacks
are measured: each one that uses more CPU than all before it, and each one over the limit, is a JSON
line in REPORT. CPU time of the thread is measured, not wall time, so that a busy machine does not
change it. `measure_callbacks` does the same for the loops of this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

MAX_CALLBACK_CPU_S = 0.25
"""What no callback of a server may exceed."""
MAX_DESCRIPTION = 400
LIMIT_VARIABLE = "LOOP_CPU_LIMIT_S"
"""The environment variable with another limit, to report more callbacks."""


class Callback(msgspec.Struct, frozen=True):
    """One measured callback of an event loop."""

    cpu_s: float
    thread: str
    description: str


class LoopCpu:
    """What was measured in this process. `on_slow` receives every callback that counts."""

    def __init__(self, on_slow: Callable[[Callback], None], limit_s: float) -> None:
        self.callbacks = 0
        self.longest_s = 0.0
        self._on_slow = on_slow
        self._limit_s = limit_s

    def record(self, handle: asyncio.Handle, cpu_s: float) -> None:
        self.callbacks += 1
        if cpu_s <= self.longest_s and cpu_s <= self._limit_s:
            return
        self.longest_s = max(self.longest_s, cpu_s)
        thread = threading.current_thread().name
        self._on_slow(Callback(cpu_s, thread, repr(handle)[:MAX_DESCRIPTION]))


@contextmanager
def measure_callbacks(
    on_slow: Callable[[Callback], None], limit_s: float = MAX_CALLBACK_CPU_S
) -> Iterator[LoopCpu]:
    """Measure the callbacks of every asyncio loop of this process, whichever thread it runs on."""
    measured = LoopCpu(on_slow, limit_s)
    run_unmeasured: Any = asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        try:
            run_unmeasured(handle)
        finally:
            measured.record(handle, time.thread_time() - began)

    asyncio.Handle._run = run  # type: ignore[assignment, method-assign]  # every callback passes
    try:
        yield measured
    finally:
        asyncio.Handle._run = run_unmeasured  # type: ignore[method-assign]


def read_report(path: Path) -> list[Callback]:
    """What a measured process has reported so far, in order."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Callback) for line in lines]


def longest_callback(path: Path) -> Callback:
    """The callback that used most CPU."""
    return max(read_report(path), key=lambda callback: callback.cpu_s)


def resident_bytes(pid: int) -> int:
    """Bytes of a process that are in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")


def main(report: str, *arguments: str) -> None:
    """Run `perdure` with these arguments, measured. Importing it is not measured."""
    from perdure.cli.main import main as perdure

    with Path(report).open("wb", buffering=0) as file:

        def write(callback: Callback) -> None:
            file.write(msgspec.json.encode(callback) + b"\n")

        sys.argv = ["perdure", *arguments]
        with measure_callbacks(write, float(os.environ.get(LIMIT_VARIABLE, MAX_CALLBACK_CPU_S))):
            perdure()


if __name__ == "__main__":
    main(*sys.argv[1:])
