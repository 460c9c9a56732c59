"""What the processes of a contender write down while they work, read from outside."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.body import LAYOUT


class Reading(NamedTuple):
    """Jobs done so far, and how many processes have done some."""

    done: int
    processes: int


class Tallies:
    """A directory of small files, a few for each process; see `peers/body.py`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def clear(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def read(self) -> Reading:
        counts = [count for count, _ in self._processes()]
        return Reading(sum(counts), len(counts))

    def first(self, since: Reading) -> float:
        """When the first job was done by a process that had done none at `since`."""
        moments = sorted(first for _, first in self._processes())
        return moments[since.processes]

    def samples(self) -> list[float]:
        """Seconds from asking to starting, of the jobs that said when they were asked for."""
        texts = [path.read_text() for path in self.directory.glob("latency.*")]
        whole = [text[: text.rfind("\n") + 1] for text in texts]
        return [float(word) for text in whole for word in text.split()]

    def statements(self) -> int | None:
        files = list(self.directory.glob("statements.*"))
        return sum(int(path.read_text() or 0) for path in files) if files else None

    def log(self, number: int) -> Path:
        return self.directory / f"worker-{number}.log"

    def last_words(self) -> str:
        logs = [path.read_text(errors="replace") for path in self.directory.glob("worker-*.log")]
        return "\n".join(logs)[-2000:]

    def _processes(self) -> list[tuple[int, float]]:
        found = []
        for path in self.directory.glob("count.*"):
            data = path.read_bytes()
            if len(data) == LAYOUT.size:
                count, first, _ = LAYOUT.unpack(data)
                found.append((int(count), float(first)))
        return [(count, first) for count, first in found if count]
