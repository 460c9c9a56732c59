"""The processes that simulate."""

import pytest

from simulation.sweeps import fleet

pool = pytest.fixture(scope="session")(fleet)
