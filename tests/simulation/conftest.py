"""The process that simulates."""

from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from simulation.sweeps import simulating_processes


@pytest.fixture(scope="session")
def pool() -> Iterator[Executor]:
    with simulating_processes(1) as pool:
        yield pool
