"""What every test gets. Fixtures live in the `fix_*.py` beside this file."""

import os
import signal
import threading

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

# `make quick` and `make test` try the same examples each time; `make prove` tries others.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("PERDURE_HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _fresh_log_limit() -> None:
    """What one test logged must not keep another one's line away."""
    HOURLY_LOG_LIMIT.clear()


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes of tests, also where a shell started us in the background."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if is_ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out timed tests, unless `-m` names them: `make prove CAMPAIGN=bounds` does."""
    if "timed" in config.option.markexpr:
        return
    timed = [item for item in items if item.get_closest_marker("timed")]
    config.hook.pytest_deselected(items=timed)
    items[:] = [item for item in items if not item.get_closest_marker("timed")]
