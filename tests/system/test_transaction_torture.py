"""A few kills at every point; `make prove CAMPAIGN=transactions` is the campaign."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

HERE = Path(__file__).parent.parent


def test_effect_child_and_success_are_together_or_not_at_all(storage_url: str) -> None:
    """In a process of its own: it forks, and here are threads."""
    told = subprocess.run(
        [sys.executable, HERE / "transaction_torture.py", storage_url, "20", "7"],
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
        check=False,
    )

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"kills=20 runs=\d00 torn=0 lost=0 double=0 mismatch=0", told.stdout)
