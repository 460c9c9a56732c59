"""Schedulers killed and paused; `python tests/schedule_stress.py --seconds 120` is the campaign."""

from __future__ import annotations

import pytest

from schedule_stress import stress

pytestmark = pytest.mark.system


async def test_no_second_is_missed_or_doubled_though_schedulers_are_killed(
    storage_url: str,
) -> None:
    verdict = await stress(storage_url, 6.0, every=1.0)

    print(verdict)
    assert verdict.is_clean, verdict
    assert verdict.kills + verdict.pauses >= 2
