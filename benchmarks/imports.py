"""What it costs to import Perdure, in seconds of CPU, beside a Python that does nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from benchmarks.environments import ROOT

NOTHING, PACKAGE, APP, HELP = (
    "python",
    "import perdure",
    "from perdure import App",
    "perdure --help",
)

COMMANDS = {
    NOTHING: ["-c", "pass"],
    PACKAGE: ["-c", "import perdure"],
    APP: ["-c", "from perdure import App"],
    HELP: ["-m", "perdure", "--help"],
}


def measure(rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of each, taken in turns; the first round only fills caches."""
    times: dict[str, list[float]] = {what: [] for what in COMMANDS}
    for number in range(rounds + 1):
        for what, arguments in COMMANDS.items():
            spent = 1000 * _cpu_seconds(arguments)
            if number:
                times[what].append(round(spent, 1))
    return times


def _cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
