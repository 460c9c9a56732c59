"""Claimers killed on narrow limits; `make prove CAMPAIGN=limits` is the campaign."""

from __future__ import annotations

import pytest

from limit_stress import stress

pytestmark = pytest.mark.system


async def test_no_limit_is_exceeded_and_every_run_ends_though_claimers_are_killed(
    storage_url: str,
) -> None:
    verdict = await stress(storage_url, 3, seed=7, every=0.8)

    print(verdict)
    assert (verdict.overshoot, verdict.unfinished, verdict.mismatch) == (0, 0, 0), verdict
    assert verdict.reached["one"] == 1
