"""What every test gets. Fixtures live in the `fix_*.py` beside this file."""

import os

import pytest
from hypothesis import settings

from perdure.telemetry.record import HOURLY_LOG_LIMIT

pytest_plugins = [
    "fix_app",
    "fix_postgres",
    "fix_processes",
    "fix_shell",
    "fix_storage",
    "fix_web",
    "perdure.testing.plugin",
    "pytester",
]

settings.register_profile("quick", deadline=None, print_blob=True, max_examples=20)
settings.register_profile("ci", deadline=None, print_blob=True, max_examples=100)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
# Hypothesis has a "ci" profile of its own, derandomized, which it picks where it sees a CI.
settings.load_profile(os.environ.get("PERDURE_HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _fresh_log_limit() -> None:
    """What one test logged must not keep another one's line away."""
    HOURLY_LOG_LIMIT.clear()
