"""The simulator finds every bug of the bank: with its known seed, or else soon.

`make prove CAMPAIGN=planted-bugs` searches for each of them from another seed.
"""

from __future__ import annotations

from concurrent.futures import Executor

import pytest

from simulation.known_seeds import MAX_SEEDS_PER_BUG, load_known_seeds, seeds_for
from simulation.schedule_bugs import BANK, Bug
from simulation.sweeps import sweep_with_bug

# A bug whose seed is not known any more is searched for.
pytestmark = pytest.mark.timeout(900)
KNOWN = load_known_seeds().bugs


@pytest.mark.parametrize("bug", BANK, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_simulator_finds(bug: Bug, pool: Executor) -> None:
    found = pool.submit(sweep_with_bug, bug.name, seeds_for(KNOWN, bug.name)).result()

    assert found.problem is not None, f"{MAX_SEEDS_PER_BUG} seeds did not find it"
    print(f"{bug.name}: seed {found.seed} finds: {found.problem}")


def test_the_bank_is_rich_enough() -> None:
    assert len({bug.name for bug in BANK}) == len(BANK) >= 15
