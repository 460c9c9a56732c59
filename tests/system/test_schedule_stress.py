"""Schedulers killed and paused; `make prove CAMPAIGN=schedules` is the campaign."""

from __future__ import annotations

import pytest

from schedule_stress import stress

pytestmark = pytest.mark.system


async def test_no_second_is_missed_or_doubled_though_schedulers_are_killed(
    storage_url: str,
) -> None:
    verdict = await stress(storage_url, 4.0, seed=7, every=1.0)

    print(verdict)
    assert verdict.is_clean, verdict
    assert verdict.kills + verdict.pauses >= 2
