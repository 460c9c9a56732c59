"""What was measured, as it is written to JSON and read from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

FORMAT = 1


class Value(NamedTuple):
    """One kind of number."""

    title: str
    unit: str


RATE, MILLISECONDS, BYTES, COUNT, MICROSECONDS = "jobs/s", "ms", "bytes", "", "µs"

VALUES = {
    "single": Value("One caller, one job at a time", RATE),
    "concurrent": Value("100 concurrent callers in one process", RATE),
    "bulk": Value("Bulk calls of 500", RATE),
    "drain": Value("Drain, one worker process", RATE),
    "drain2": Value("Drain, two worker processes", RATE),
    "end_to_end": Value("End to end: a producer and a worker together", RATE),
    "life": Value("Asked for, claimed and finished in turns, one thread", RATE),
    "start_p50": Value("Asked → started in another process, p50", MILLISECONDS),
    "start_p99": Value("Asked → started in another process, p99", MILLISECONDS),
    "result_p50": Value("Asked → durable result back, p50", MILLISECONDS),
    "result_p99": Value("Asked → durable result back, p99", MILLISECONDS),
    "enqueue_commits": Value("Commits to ask for a job", COUNT),
    "drain_commits": Value("Commits to execute a job", COUNT),
    "enqueue_statements": Value("Statements to ask for a job", COUNT),
    "drain_statements": Value("Statements to execute a job", COUNT),
    "enqueue_wal": Value("Write-ahead log to ask for a job", BYTES),
    "drain_wal": Value("Write-ahead log to execute a job", BYTES),
    "rows_left": Value("Rows left by a job", COUNT),
    "bytes_left": Value("Bytes left by a job", BYTES),
    "worker_cpu": Value("CPU of the worker for a job", MICROSECONDS),
    "server_cpu": Value("CPU of the server for a job", MICROSECONDS),
    "worker_peak": Value("Memory of the worker, peak", BYTES),
    "server_memory": Value("Memory of the server", BYTES),
}

Samples = dict[str, dict[str, list[float]]]
"""By value and contender."""


class Results:
    """Samples of everything, the conditions they were taken under, and what was left out."""

    def __init__(self) -> None:
        self.conditions: dict[str, Any] = {}
        self.contenders: dict[str, dict[str, str]] = {}
        self.skipped: dict[str, str] = {}
        self.samples: Samples = {}
        self.loudest: dict[str, dict[str, float]] = {}
        """How many cores others used at most, by measure and contender."""
        self.growth: dict[str, list[dict[str, Any]]] = {}
        self.retention: dict[str, dict[str, list[float]]] = {}
        self.pressure: dict[str, dict[str, list[float]]] = {}
        self.imports: dict[str, list[float]] = {}
        self.others: list[dict[str, Any]] = []
        """Conditions of further runs that completed this one, and what they brought."""

    def add(self, contender: str, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.samples.setdefault(name, {}).setdefault(contender, []).append(value)

    def heard(self, measure: str, contender: str, cores: float) -> None:
        levels = self.loudest.setdefault(measure, {})
        levels[contender] = max(levels.get(contender, 0.0), round(cores, 2))

    def median(self, value: str, contender: str) -> float | None:
        samples = self.samples.get(value, {}).get(contender)
        return median(samples) if samples else None

    def complete(self, other: Results) -> None:
        """Add what only another run has measured, and say so."""
        brought: dict[str, list[str]] = {}
        for value, by in other.samples.items():
            mine = self.samples.get(value, {})
            brought[value] = [one for one in by if one not in mine]
            self.samples[value] = by | mine
        for part in ("growth", "retention", "pressure", "imports"):
            theirs, mine = getattr(other, part), getattr(self, part)
            brought[part] = [name for name in theirs if name not in mine]
            setattr(self, part, theirs | mine)
        for adapter, places in other.growth.items():
            # Places are compared with each other: they come from one run, that with most of them.
            if len(places) > len(self.growth[adapter]):
                self.growth[adapter] = places
                brought["growth"].append(adapter)
        for measure, levels in other.loudest.items():
            for contender, cores in levels.items():
                self.heard(measure, contender, cores)
        self.contenders = other.contenders | self.contenders
        self.skipped = other.skipped | self.skipped
        self.others.append(other.conditions | {"brought": brought})

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"format": FORMAT, **vars(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        if data.pop("format", None) != FORMAT:
            raise SystemExit(f"{path} is not of format {FORMAT}; measure again")
        results = cls()
        vars(results).update(data)
        return results


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def shown(value: float, unit: str) -> str:
    """A number as people read it."""
    if unit == BYTES:
        return _shown_bytes(value)
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
    return f"{digits} {unit}".strip()


def _shown_bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:,.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB"
