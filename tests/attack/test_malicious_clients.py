"""A malicious tenant and a malicious worker beside an honest tenant: it does not notice them."""

from __future__ import annotations

import pytest

from attack.attackers import TENANT_SCOPES, WORKER_SCOPES
from attack.campaign import Campaign, attack_a_tenant
from attack.neighbour import attack_a_neighbour
from hook_kit import SECRET
from remote_kit import World

REQUESTS = 200
SEED = 14


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)


@pytest.mark.parametrize("scopes", [TENANT_SCOPES, WORKER_SCOPES], ids=["tenant", "worker"])
async def test_an_honest_tenant_does_not_notice_an_attacker_in_another_environment(
    world: World, scopes: tuple[tuple[str, ...], ...]
) -> None:
    report = await attack_a_tenant(world, Campaign(scopes=scopes, seed=SEED, requests=REQUESTS))

    assert report.statuses.total() >= REQUESTS


async def test_a_malicious_worker_reaches_nothing_that_its_neighbours_hold(world: World) -> None:
    report = await attack_a_neighbour(world, SEED, REQUESTS)

    assert report.statuses.total() >= REQUESTS
