"""Five schedulers for minutes, three for years: each time exactly once, none missing.

`make prove CAMPAIGN=marathons` simulates ten minutes and ten years.
"""

from __future__ import annotations

from concurrent.futures import Executor

import pytest

from simulation.marathon_checks import check_minutes, check_years
from simulation.sweeps import run_minutes, run_years

SECONDS = 120
YEARS = 2

# On a busy machine the years take minutes.
pytestmark = pytest.mark.timeout(900)


def test_five_schedulers_make_every_second_once(pool: Executor) -> None:
    """While they crash, are paused, wait for a storage that fails, and their clocks are wrong."""
    story = pool.submit(run_minutes, 7, SECONDS).result()

    check_minutes(story, SECONDS)


def test_years_of_mixed_schedules_have_no_miss_and_no_double(pool: Executor) -> None:
    story = pool.submit(run_years, 3, YEARS).result()

    check_years(story, YEARS)
