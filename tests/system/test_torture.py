"""Workers killed at random under load; `make prove CAMPAIGN=torture` is the campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from torture import Plan, torture

pytestmark = pytest.mark.system


def test_nothing_is_lost_or_doubled_when_workers_are_killed(
    storage_url: str, tmp_path: Path
) -> None:
    verdict = torture(storage_url, tmp_path, Plan(kills=3, massacres=1, ttl=1.2, seed=7))

    print(verdict)
    assert verdict.is_clean, verdict
    assert verdict.kills == 8
    assert verdict.found.recoveries
