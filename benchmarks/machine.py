"""What the machine is, and what it is doing: for us, and for others meanwhile.

Reads /proc; where there is none, times and sizes are unknown and foreign load is not detected.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

PROC = Path("/proc")
KERNEL = 2
"""The parent of all kernel threads."""

TOO_LOUD = 0.25
"""Cores that others may use before a measurement is worth repeating."""

TRIES = 3


class Process(NamedTuple):
    parent: int
    seconds: float
    """CPU of its own and of the children it has buried."""


def processes() -> dict[int, Process]:
    if not PROC.exists():
        return {}
    found = {int(path.name): _read(path) for path in PROC.iterdir() if path.name.isdigit()}
    return {pid: process for pid, process in found.items() if process is not None}


def _read(path: Path) -> Process | None:
    try:
        fields = (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None  # it ended meanwhile
    return Process(int(fields[1]), sum(map(int, fields[11:15])) / _ticks())


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def family(root: int, among: dict[int, Process]) -> set[int]:
    """A process and all that descend from it."""
    members = {root} & among.keys()
    while True:
        young = {pid for pid, process in among.items() if process.parent in members} - members
        if not young:
            return members
        members |= young


def cpu_seconds(roots: Iterable[int]) -> float | None:
    """What these processes and their families have used so far."""
    among = processes()
    members: set[int] = set()
    for root in roots:
        members |= family(root, among)
    return sum(among[pid].seconds for pid in members) if among else None


def memory(roots: Iterable[int], field: str) -> int | None:
    """Bytes of these processes' families: `Pss` counts shared pages once, `VmHWM` is the peak."""
    among = processes()
    members: set[int] = set()
    for root in roots:
        members |= family(root, among)
    file = "smaps_rollup" if field == "Pss" else "status"
    sizes = [_kilobytes(PROC / str(pid) / file, field) for pid in members]
    known = [size for size in sizes if size is not None]
    return sum(known) * 1024 if known else None


def _kilobytes(path: Path, field: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


class Meter:
    """Cores used since it was made by processes that are not this one's family."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._foreign_seconds()

    def foreign_cores(self) -> float:
        used = self._foreign_seconds() - self._before
        return max(used / (time.monotonic() - self._began), 0.0)

    def _foreign_seconds(self) -> float:
        if not PROC.exists():
            return 0.0
        busy = [int(word) for word in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:4]]
        among = processes()
        ours = family(os.getpid(), among) | family(KERNEL, among)
        return sum(busy) / _ticks() - sum(among[pid].seconds for pid in ours)


@dataclass(frozen=True, slots=True)
class Taken:
    """One value, and how loud the others were while it was taken."""

    value: float
    foreign_cores: float


def quietest(take: Callable[[], T], tries: int = TRIES) -> tuple[T, float]:
    """What `take` gives when others are quiet: again if they were not, and the best of those."""
    best: tuple[T, float] | None = None
    for _ in range(tries):
        meter = Meter()
        value = take()
        loud = meter.foreign_cores()
        if best is None or loud < best[1]:
            best = value, loud
        if loud <= TOO_LOUD:
            break
    assert best is not None
    return best


def conditions(data: Path) -> dict[str, object]:
    """Everything a reader needs to judge the numbers."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem(data),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "loop_milliseconds": round(_loop_milliseconds(), 1),
    }


def filesystem(path: Path) -> str:
    """The kind of disk that is written to. On `tmpfs` no number of a durable store means much."""
    try:
        mounts = [line.split()[1:3] for line in (PROC / "mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holds = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(holds, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def _cpu_name() -> str:
    try:
        lines = (PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _loop_milliseconds() -> float:
    """A fixed piece of Python: two runs are comparable only if this took about as long."""
    began = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number & 3
    return (time.perf_counter() - began) * 1000
