"""The simulator finds every bug of the bank, soon."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import pytest

from simulation.schedule_bugs import BANK, Bug
from simulation.sweeps import Sweep, sweep_with_bug

MOST_SEEDS = 800

# They wait for each other in a pool of processes.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def sweeps(pool: Executor) -> dict[str, Future[Sweep]]:
    return {bug.name: pool.submit(sweep_with_bug, bug.name, MOST_SEEDS) for bug in BANK}


@pytest.mark.parametrize("bug", BANK, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_simulator_finds(bug: Bug, sweeps: dict[str, Future[Sweep]]) -> None:
    found = sweeps[bug.name].result()

    assert found.problem is not None, f"{MOST_SEEDS} seeds did not find it"
    print(f"{bug.name}: seed {found.seed} finds: {found.problem}")


def test_the_bank_is_rich_enough() -> None:
    assert len({bug.name for bug in BANK}) == len(BANK) >= 15
