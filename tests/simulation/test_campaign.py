"""A slice of the simulator's campaign: no seed finds a problem, and all rare states are reached.

`make prove CAMPAIGN=simulator` simulates thousands of seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Executor
from pathlib import Path

import pytest

from simulation import POINTS, command, replay
from simulation.known_seeds import MAX_SEEDS_FOR_RARE_STATES, load_known_seeds
from simulation.sweeps import sweep

SEEDS, CHUNK = 150, 25
CHUNKS = range(1, SEEDS + 1, CHUNK)
TWICE = range(1, 21)

# A rare state whose seed is not known any more is searched for.
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("first", CHUNKS)
def test_no_seed_finds_a_problem(first: int, pool: Executor) -> None:
    found = pool.submit(sweep, range(first, first + CHUNK)).result()

    assert found.problem is None, f"{found.problem}\n    {command(found.seed or 0)}"


def test_every_rare_state_is_reached(pool: Executor) -> None:
    """By the seeds that are known for it, or else by some other seed."""
    missing = set(POINTS)
    for seed in [*load_known_seeds().rare_states, *range(1, MAX_SEEDS_FOR_RARE_STATES + 1)]:
        missing -= set(pool.submit(sweep, [seed]).result().seen)
        if not missing:
            break

    assert sorted(missing) == []


def test_a_seed_is_the_same_story_every_time_even_with_other_hashes() -> None:
    """Sets and dictionaries of strings are ordered differently in the other process."""
    seeds = f"{TWICE.start}..{TWICE.stop - 1}"
    other = subprocess.run(
        [sys.executable, "-m", "simulation", "--seeds", seeds, "--digests"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        cwd=Path(__file__).parents[1],
    )

    assert other.stdout.splitlines() == [f"{seed} {replay(seed).digest()}" for seed in TWICE]
