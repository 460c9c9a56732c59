"""Seeds known to find a planted bug or to reach a rare state: `make test` tries them first.

They are only a shortcut. When the engine changes, a seed tells another story; then the tests search
further, which takes minutes. In `tests`, `python -m simulation.known_seeds` writes the table again.
"""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

import msgspec

from simulation import POINTS, replay
from simulation.schedule_bugs import BANK
from simulation.sweeps import simulating_processes, sweep_with_bug

FILE = Path(__file__).with_name("known_seeds.json")
MAX_SEEDS_PER_BUG = 800
MAX_SEEDS_FOR_RARE_STATES = 2000


class KnownSeeds(msgspec.Struct):
    """`bugs`: by name, a seed that finds it. `rare_states`: seeds that together reach them all."""

    bugs: dict[str, int]
    rare_states: list[int]


def load_known_seeds() -> KnownSeeds:
    return msgspec.json.decode(FILE.read_bytes(), type=KnownSeeds)


def find_known_seeds(pool: Executor) -> KnownSeeds:
    """Try the known seeds, and search from seed 1 for what they miss. This takes minutes."""
    known = load_known_seeds().bugs
    sweeps = {
        bug.name: pool.submit(sweep_with_bug, bug.name, seeds_for(known, bug.name)) for bug in BANK
    }
    rare_states = pool.submit(find_rare_states)
    found = {name: sweep.result().seed for name, sweep in sweeps.items()}
    missed = [name for name, seed in found.items() if seed is None]
    assert not missed, f"{MAX_SEEDS_PER_BUG} seeds do not find: {missed}"
    return KnownSeeds({name: seed or 0 for name, seed in found.items()}, rare_states.result())


def seeds_for(known: dict[str, int], name: str) -> list[int]:
    """Return the seeds to try for a bug: first the one that is known to find it."""
    first = [known[name]] if name in known else []
    return [*first, *range(1, MAX_SEEDS_PER_BUG + 1)]


def find_rare_states() -> list[int]:
    """Return few seeds that together reach every rare state."""
    reached: dict[int, set[str]] = {}
    missing = set(POINTS)
    for seed in range(1, MAX_SEEDS_FOR_RARE_STATES + 1):
        reached[seed] = set(replay(seed).seen) & set(POINTS)
        missing -= reached[seed]
        if not missing:
            return _cover(reached)
    raise AssertionError(f"not reached: {sorted(missing)}")


def _cover(reached: dict[int, set[str]]) -> list[int]:
    missing, seeds = set(POINTS), []
    while missing:
        best = max(reached, key=lambda seed: len(reached[seed] & missing))
        missing -= reached[best]
        seeds.append(best)
    return sorted(seeds)


if __name__ == "__main__":
    with simulating_processes(2) as processes:
        text = msgspec.json.format(msgspec.json.encode(find_known_seeds(processes)), indent=2)
    FILE.write_bytes(text + b"\n")
