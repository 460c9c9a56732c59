"""The campaign of fuzzed calls: one server lives through all slices of one `make prove`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fuzzing.drive import fuzz as send_calls
from fuzzing.target import Target, fill, serve_furnished
from loop_cpu import MAX_CALLBACK_CPU_S
from prove import Outcome, Slice, campaign, require

CALLS = 100_000
MIN_CALLS_FOR_MEMORY = 50_000
"""A server that was sent fewer is still filling its caches."""
MAX_GROWTH_PERCENT = 10.0
"""Of a server's memory, in the second half of its calls."""


SETTLED_SAMPLES = 20
"""The lowest of the last samples of a slice is what a server keeps; the others include the largest
requests that were under way, or not yet collected."""


class _Server:
    """The server of the current database. It is kept from slice to slice, because the memory of
    one process is compared."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._database: str | None = None
        self._target: Target | None = None
        atexit.register(self._stack.close)

    def at(self, part: Slice) -> Target:
        if self._target is None or self._database != part.database:
            self._stack.close()
            self._target = self._stack.enter_context(_serve(part))
            self._database = part.database
        return self._target


@contextmanager
def _serve(part: Slice) -> Iterator[Target]:
    """In a directory of its own: that of a slice is removed when the slice has ended."""
    directory = Path(tempfile.mkdtemp(prefix="perdure-fuzz-server-"))
    url = f"sqlite:///{directory / 'runs.db'}" if part.database == "sqlite" else part.url
    with serve_furnished(url, directory) as target:
        fill(target)
        yield target
    shutil.rmtree(directory)


_SERVER = _Server()


def _check_memory(total: Outcome) -> None:
    """Compare the memory of the server that was sent most calls with that after half of them."""
    servers: dict[str, dict[int, int]] = defaultdict(dict)
    for name, memory in total.sightings.items():
        pid, calls = name.split(":")
        servers[pid][int(calls)] = memory
    longest = max(servers.values(), key=max)
    last = max(longest)
    half = min(longest, key=lambda calls: abs(calls - last / 2))
    if last < MIN_CALLS_FOR_MEMORY:
        return
    growth = 100 * (longest[last] / longest[half] - 1)
    total.counts["memory_growth_percent"] = round(growth, 1)
    found = f"memory grew from {longest[half]} bytes after {half} calls to {longest[last]} bytes"
    require(growth <= MAX_GROWTH_PERCENT, f"{found} after {last} calls")


@campaign(
    "fuzz",
    "Send seeded calls to every route and worker operation: no server error, no callback of the "
    "event loop over 250 ms of CPU, and memory does not grow.",
    unit="calls",
    size=CALLS,
    slice_size=5_000,
    verify=_check_memory,
)
def fuzz(part: Slice) -> Outcome:
    target = _SERVER.at(part)
    verdict = send_calls(target, part.seed, part.size, part.report)
    (part.directory / "problems.log").write_text("\n\n".join(verdict.problems))
    require(not verdict.problems, f"{len(verdict.problems)} problems: {verdict.problems[:1]}")
    slow = target.slow_callbacks(MAX_CALLBACK_CPU_S)
    require(not slow, f"a callback used more than {MAX_CALLBACK_CPU_S} s of CPU: {slow[:1]}")
    statuses = {f"status_{name}": count for name, count in sorted(verdict.statuses.items())}
    return Outcome(
        {
            "calls": verdict.statuses.total(),
            **statuses,
            "max_callback_s": target.longest_callback_s,
            "max_memory_bytes": max(verdict.memory_bytes),
        },
        {f"{target.pid}:{target.calls}": min(verdict.memory_bytes[-SETTLED_SAMPLES:])},
    )
