"""Thousands of short scenarios: nothing goes wrong that may not, and everything rare was seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import Executor, Future

import pytest

from perdure.testing.simulation import POINTS, command, replay
from simulation.sweeps import Sweep, sweep

SEEDS = int(os.environ.get("PERDURE_SIMULATION_SEEDS", "2000"))
CHUNK = 100
CHUNKS = range(1, SEEDS + 1, CHUNK)
TWICE = range(1, 41)

# They wait for each other in a pool of processes.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def sweeps(pool: Executor) -> dict[int, Future[Sweep]]:
    return {first: pool.submit(sweep, first, first + CHUNK - 1) for first in CHUNKS}


@pytest.mark.parametrize("first", CHUNKS)
def test_no_seed_finds_a_problem(first: int, sweeps: dict[int, Future[Sweep]]) -> None:
    found = sweeps[first].result()

    assert found.problem is None, f"{found.problem}\n    {command(found.seed or 0)}"


def test_every_rare_state_was_reached(sweeps: dict[int, Future[Sweep]]) -> None:
    seen: Counter[str] = Counter()
    for found in sweeps.values():
        seen += found.result().seen

    assert [name for name in POINTS if not seen[name]] == []


def test_a_seed_is_the_same_story_every_time_even_with_other_hashes() -> None:
    """Sets and dictionaries of strings are ordered differently in the other process."""
    seeds = f"{TWICE.start}..{TWICE.stop - 1}"
    other = subprocess.run(
        [sys.executable, "-m", "perdure.testing.simulation", "--seeds", seeds, "--digests"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "4711"},
    )

    assert other.stdout.splitlines() == [f"{seed} {replay(seed).digest()}" for seed in TWICE]
