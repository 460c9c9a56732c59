"""Campaigns of the deterministic simulator. They need no database: each story has its own."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import as_completed

from prove import Outcome, Slice, campaign, require
from simulation import POINTS, command
from simulation.known_seeds import MAX_SEEDS_FOR_RARE_STATES, MAX_SEEDS_PER_BUG
from simulation.marathon_checks import check_minutes, check_years
from simulation.schedule_bugs import BANK
from simulation.sweeps import run_minutes, run_years, simulating_processes, sweep, sweep_with_bug

PROCESSES = os.cpu_count() or 2
SEEDS_PER_TASK = 25
SECONDS = 600
YEARS = 10


def _check_rare_states(total: Outcome) -> None:
    """A campaign of the usual size must have reached all of them."""
    missed = [name for name in POINTS if not total.sightings.get(name)]
    is_complete = total.counts["seeds"] >= MAX_SEEDS_FOR_RARE_STATES
    require(not (missed and is_complete), f"no seed reached: {', '.join(missed)}")


@campaign(
    "simulator",
    "Simulate seeds of the whole runtime: no seed finds a problem, every rare state is reached.",
    unit="seeds",
    size=2000,
    slice_size=250,
    databases=(),
    verify=_check_rare_states,
)
def simulator(part: Slice) -> Outcome:
    last = part.seed + part.size
    chunks = [
        range(first, min(first + SEEDS_PER_TASK, last))
        for first in range(part.seed, last, SEEDS_PER_TASK)
    ]
    seen: Counter[str] = Counter()
    done = 0
    with simulating_processes(PROCESSES) as pool:
        sweeps = {pool.submit(sweep, seeds): seeds for seeds in chunks}
        for future in as_completed(sweeps):
            found = future.result()
            require(found.problem is None, f"{found.problem} ({command(found.seed or 0)})")
            seen += found.seen
            done += len(sweeps[future])
            part.report(done)
    return Outcome({"seeds": done}, dict(seen))


@campaign(
    "planted-bugs",
    "Plant each bug of the bank in the engine: the simulator finds it from any seed.",
    unit="bugs",
    size=len(BANK),
    slice_size=6,
    databases=(),
)
def planted_bugs(part: Slice) -> Outcome:
    """Each slice takes the next bugs of the bank."""
    first = part.number * 6
    names = [BANK[index % len(BANK)].name for index in range(first, first + part.size)]
    tried = 0
    with simulating_processes(PROCESSES) as pool:
        seeds = range(part.seed, part.seed + MAX_SEEDS_PER_BUG)
        sweeps = {name: pool.submit(sweep_with_bug, name, seeds) for name in names}
        for number, (name, future) in enumerate(sweeps.items(), 1):
            found = future.result()
            require(found.seed is not None, f"{MAX_SEEDS_PER_BUG} seeds do not find: {name}")
            tried = max(tried, (found.seed or 0) - part.seed + 1)
            part.report(number)
    return Outcome({"bugs": len(names), "max_seeds_tried": tried})


@campaign(
    "marathons",
    f"Simulate schedulers for {SECONDS // 60} minutes and {YEARS} years: each time once.",
    unit="stories",
    size=2,
    slice_size=1,
    databases=(),
)
def marathons(part: Slice) -> Outcome:
    with simulating_processes(2) as pool:
        minutes = pool.submit(run_minutes, part.seed, SECONDS)
        years = pool.submit(run_years, part.seed, YEARS)
        check_minutes(minutes.result(), SECONDS)
        check_years(years.result(), YEARS)
    made = sum(map(len, [*minutes.result().times.values(), *years.result().times.values()]))
    return Outcome({"stories": 1, "times": made})
