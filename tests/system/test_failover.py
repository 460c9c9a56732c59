"""A standby is promoted under load. The long campaign: `python tests/standby.py --seconds 600`."""

from __future__ import annotations

import pytest

from standby import LEASE_TTL, Plan, fail_over

LONGER_THAN_A_LEASE = LEASE_TTL.total_seconds() + 1


@pytest.mark.parametrize("attributes", ["read-write", "any"])
async def test_a_promoted_standby_has_lost_nothing_and_costs_no_lease(attributes: str) -> None:
    """With `any`, sessions reach the standby while it is read-only."""
    plan = Plan(seconds=3, outage=LONGER_THAN_A_LEASE, attributes=attributes)

    verdict = await fail_over(plan)

    assert verdict.is_clean, verdict
