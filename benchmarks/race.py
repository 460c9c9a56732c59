"""One contender at the start: its processes, and what is measured of them.

A drain is timed from the moment all worker processes have begun a job to the moment the store says
that nothing is left, by the jobs done in between: starting up is nobody's fault.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.contenders import Contender
from benchmarks.environments import ROOT
from benchmarks.stores import Left, Store, Work
from benchmarks.tallies import Tallies

POLL = 0.005
PATIENCE = 300.0
ANALYZE_AT = (0.5, 1.0, 2.0)
"""Seconds between refreshing statistics while producer and worker run together: a new table has
none, and autovacuum comes once a minute."""


class Broken(Exception):
    """A contender did not do what it was asked; its last words are the message."""


class Start(NamedTuple):
    """When a drain's clock started, and what was done by then."""

    done: int
    at: float


class Drained(NamedTuple):
    """A drain: jobs a second, and what it took."""

    rate: float
    seconds: float
    jobs: int
    worker_cpu: float | None
    server_cpu: float | None
    worker_peak: int | None
    server_memory: int | None


class Cost(NamedTuple):
    """What `count` jobs cost, from being asked for to being finished."""

    jobs: int
    enqueue: Work | None
    drain: Work | None
    left: Left
    drained: Drained
    enqueue_statements: int | None
    drain_statements: int | None


class Entrant:
    """A contender with its store and its command. Every measurement begins with a fresh store."""

    def __init__(self, contender: Contender, store: Store, command: list[str], home: Path) -> None:
        self.contender = contender
        self.store = store
        self.tally = Tallies(home / "tally" / contender.name)
        self._command = command
        self._url = ""

    # What is measured

    def enqueue(self, how: str, count: int) -> float:
        """Jobs a second that one producer process gets in."""
        self.reset()
        return self._asked_per_second(self.produce(how, count))

    def drain(self, count: int, workers: int) -> Drained:
        self.reset()
        self.fill(count)
        return self.drain_filled(count, workers)

    def end_to_end(self, count: int) -> float:
        """One producer and one worker together, from the first call to the last record."""
        self.reset()
        with self._statistics(), self.end_to_end_laps() as lap:
            return lap(count)

    def lives(self, count: int) -> float:
        """Whole lives a second, by one thread of one process; the ceiling only."""
        self.reset()
        return self._asked_per_second(self._run("lives", str(count)))

    @contextmanager
    def end_to_end_laps(self) -> Iterator[Callable[[int], float]]:
        """The same again and again, while the worker stays."""

        def lap(count: int) -> float:
            goal = self.tally.read().done + count
            began = float(self.produce(self._bulk, count)["began"])
            return count / (self._await_done(goal, processes) - began)

        with self.workers(1) as processes:
            self._warm_up()
            yield lap

    def latency(self, count: int, *, settings: dict[str, str] | None = None) -> list[float]:
        """Seconds from the call to the job's first line, at a low rate, the worker idle."""
        self.reset()
        with self.workers(1, settings):
            self._warm_up()
            self._run("latency", str(count))
            deadline = time.monotonic() + PATIENCE
            while len(samples := self.tally.samples()) < count:
                self._check(deadline, [])
        return samples

    def results(self, count: int) -> list[float]:
        """Seconds from the call to its durable result being back; ours only."""
        self.reset()
        with self.workers(1, {"BENCH_CONCURRENCY": ""}):
            self._warm_up()
            seconds: list[float] = self._run("results", str(count))["seconds"]
        return seconds

    def cost(self, count: int) -> Cost:
        self.reset({"BENCH_STATEMENTS": "1"})
        empty = self.store.left()
        start = self.store.work()
        self.produce(self._bulk, count)
        filled = self.store.work()
        asked = self.tally.statements()
        self.store.settle()
        settled = self.store.work()
        drained = self.drain_filled(count, 1)
        end = self.store.work()
        executed = self.tally.statements()
        left = self.store.left()
        return Cost(
            count,
            _difference(start, filled),
            _difference(settled, end),
            Left(left.rows - empty.rows, left.bytes - empty.bytes),
            drained,
            asked,
            None if executed is None or asked is None else executed - asked,
        )

    # Its pieces, for measurements that mix them otherwise

    def reset(self, variables: dict[str, str] | None = None) -> None:
        self._variables = variables or {}
        self.tally.clear()
        self._url = self.store.reset(self.contender.name, self._make_schema)

    def attach(self, url: str) -> None:
        """Go on with a database that is there already."""
        self._variables = {}
        self.tally.clear()
        self._url = url
        self.store.use(url)
        self.store.settle()

    def fill(self, count: int) -> None:
        self.produce(self._bulk, count)
        self.store.settle()

    @property
    def _bulk(self) -> str:
        return "many" if self.contender.bulk else "single"

    def produce(self, how: str, count: int) -> dict[str, Any]:
        return self._run("enqueue", how, str(count))

    def drain_filled(self, count: int, workers: int) -> Drained:
        before = self.tally.read()
        goal = before.done + count
        with self.workers(workers) as processes:
            start = self._await_begun(workers, processes, goal)
            used = self._cpu(processes)
            ended = self._await_done(goal, processes)
            used_after = self._cpu(processes)
            peak = machine.memory([process.pid for process in processes], "VmHWM")
            server = self.store.pid
            held = None if server is None else machine.memory([server], "Pss")
        if start.done >= goal:  # too few to be measured well: from the very first one
            start = Start(before.done, self.tally.first(since=before))
        drained = goal - start.done
        return Drained(
            drained / (ended - start.at),
            ended - start.at,
            drained,
            _seconds_between(used[0], used_after[0]),
            _seconds_between(used[1], used_after[1]),
            peak,
            held,
        )

    @contextmanager
    def workers(
        self, count: int, settings: dict[str, str] | None = None
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        settings = {"BENCH_WORKERS": str(count), **(settings or {})}
        processes = [self._start_worker(number, settings) for number in range(count)]
        try:
            yield processes
        finally:
            for process in processes:
                _signal(process, signal.SIGTERM)
            for process in processes:
                _await_end(process)

    # Processes

    def _start_worker(
        self, number: int, settings: dict[str, str] | None
    ) -> subprocess.Popen[bytes]:
        with self.tally.log(number).open("wb") as log:
            return subprocess.Popen(
                [*self._command, "worker"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self._environment(settings),
                start_new_session=True,
            )

    def _make_schema(self, url: str) -> None:
        self._url = url
        self._spawn("schema")

    def _run(self, *words: str) -> dict[str, Any]:
        lines = self._spawn(*words).splitlines()
        if not lines or not lines[-1].startswith("{"):
            raise Broken(f"{self.contender.name} {' '.join(words)} reported nothing")
        report: dict[str, Any] = json.loads(lines[-1])
        return report

    def _spawn(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words],
            cwd=ROOT,
            env=self._environment(None),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE * 2,
        )
        if done.returncode != 0:
            words_said = (done.stdout + done.stderr)[-2000:]
            raise Broken(f"{self.contender.name} {' '.join(words)}: {words_said}")
        return done.stdout

    def _environment(self, settings: dict[str, str] | None) -> dict[str, str]:
        contender = self.contender
        return {
            **os.environ,
            **contender.environment.variables(),
            **contender.settings,
            **self._variables,
            **(settings or {}),
            "BENCH_URL": self._url,
            "BENCH_TALLY": str(self.tally.directory),
        }

    # Looking on

    def _await_begun(
        self, workers: int, processes: list[subprocess.Popen[bytes]], goal: int
    ) -> Start:
        """Until all workers have begun, or one of them has done it all."""
        deadline = time.monotonic() + PATIENCE
        old = self.tally.read().processes
        while True:
            now = self.tally.read()
            if now.processes - old >= workers or now.done >= goal:
                return Start(now.done, time.monotonic())
            self._check(deadline, processes)

    def _await_done(
        self, count: int, processes: list[subprocess.Popen[bytes]] | None = None
    ) -> float:
        deadline = time.monotonic() + PATIENCE
        while self.tally.read().done < count:
            self._check(deadline, processes or [])
        while self.store.unfinished(self.contender.question) > 0:
            self._check(deadline, processes or [])
        return time.monotonic()

    def _check(self, deadline: float, processes: list[subprocess.Popen[bytes]]) -> None:
        if any(process.poll() is not None for process in processes):
            raise Broken(f"a worker of {self.contender.name} ended: {self.tally.last_words()}")
        if time.monotonic() > deadline:
            done = self.tally.read().done
            raise Broken(
                f"{self.contender.name} is stuck at {done} jobs: {self.tally.last_words()}"
            )
        time.sleep(POLL)

    def _warm_up(self) -> None:
        """Have the worker do one job, so that it is there and idle."""
        self.produce("single", 1)
        self._await_done(1)

    def _cpu(self, processes: list[subprocess.Popen[bytes]]) -> tuple[float | None, float | None]:
        workers = machine.cpu_seconds(process.pid for process in processes)
        server = self.store.pid
        return workers, None if server is None else machine.cpu_seconds([server])

    @contextmanager
    def _statistics(self) -> Iterator[None]:
        """Refresh the store's statistics now and then, for everybody alike."""
        over = threading.Event()

        def refresh() -> None:
            for delay in ANALYZE_AT:
                if over.wait(delay):
                    return
                self.store.refresh(self._url)

        thread = threading.Thread(target=refresh)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _asked_per_second(self, report: dict[str, Any]) -> float:
        return float(report["count"]) / (float(report["ended"]) - float(report["began"]))


def _difference(before: Work | None, after: Work | None) -> Work | None:
    if before is None or after is None:
        return None
    return Work(after.commits - before.commits, after.wal_bytes - before.wal_bytes)


def _seconds_between(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _signal(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, which)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    _signal(process, signal.SIGKILL)  # and whatever its group still has
    process.wait()
