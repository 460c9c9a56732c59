"""How long an idle worker in another process takes to start what was just asked for.

    python -m benchmarks.latency [--adapter sqlite|postgres|both] [--runs N] [--no-hints]

At a low rate, with default settings and durable commits. Printed are three times: from the call
of `trigger` to the first line of the handler, from `trigger`'s return to there, and from the
handler's last line to `result()` having the result back in the process that asked.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.databases import ADAPTERS, open_databases
from perdure import App
from perdure.engine.task import Task

RUNS, WARM_UP = 300, 20
PAUSE = 0.05
READY = "ready"


class Times(NamedTuple):
    call_to_start: float
    commit_to_start: float
    end_to_result: float


def make_app(url: str, hints: bool) -> tuple[App, Task[[], float]]:
    app = App(url, hints=hints)

    @app.task
    async def tell_time() -> float:
        # One clock for all processes of a machine, on Linux and macOS.
        return time.monotonic()

    return app, tell_time


async def work(url: str, hints: bool) -> None:
    """The other process: a worker until its input is closed."""
    app, _ = make_app(url, hints)
    async with app.run_all(concurrency=10):
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def worker_process(url: str, hints: bool) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.latency", "--work-on", url]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, *_flag(hints)], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
        try:
            yield
        finally:
            process.communicate()


async def measure(url: str, runs: int, hints: bool) -> list[Times]:
    app, tell_time = make_app(url, hints)
    storage = app.open_storage()
    await storage.migrate()
    await storage.close()
    times = []
    with worker_process(url, hints):
        async with app:
            for _ in range(WARM_UP + runs):
                called = time.monotonic()
                run = await tell_time.trigger()
                committed = time.monotonic()
                started = await run.result(30)
                ended = time.monotonic()
                times.append(Times(started - called, started - committed, ended - started))
                await asyncio.sleep(PAUSE)
    return times[WARM_UP:]


def table(times: Sequence[Times]) -> Iterator[str]:
    says = ("trigger called -> handler", "trigger returned -> handler", "handler -> result()")
    for what, column in zip(says, zip(*times, strict=True), strict=True):
        p99 = quantiles(column, n=100)[-1]
        yield f"  {what:<28} p50 {_ms(median(column))}  p99 {_ms(p99)}  max {_ms(max(column))}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:7.2f} ms"


def _flag(hints: bool) -> list[str]:
    return [] if hints else ["--no-hints"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.latency", description=__doc__.split("\n")[0])
    parser.add_argument("--adapter", choices=[*ADAPTERS, "both"], default="both")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--no-hints", action="store_true", help="what polling alone achieves")
    parser.add_argument("--work-on", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    hints = not chosen.no_hints
    if chosen.work_on is not None:
        asyncio.run(work(chosen.work_on, hints))
        return 0
    for adapter in ADAPTERS if chosen.adapter == "both" else [chosen.adapter]:
        print(f"{adapter}: {chosen.runs} runs, one after another", flush=True)
        with open_databases(adapter) as databases:
            times = asyncio.run(measure(databases.create("latency"), chosen.runs, hints))
        print(*table(times), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
