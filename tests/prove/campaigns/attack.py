"""The campaign of a malicious worker and a malicious tenant beside an honest one."""

from __future__ import annotations

import asyncio
import os

from attack.attackers import TENANT_SCOPES, WORKER_SCOPES, AttackFound
from attack.campaign import Campaign, Report, attack_a_tenant
from attack.latency import measure
from attack.neighbour import attack_a_neighbour
from hook_kit import SECRET
from prove import CampaignFailed, Outcome, Slice, campaign
from remote_kit import Hall, World, world_at

REQUESTS_PER_ROUND = 300
RUNS = 200
"""Whose latency is measured, without and with the attacker."""


@campaign(
    "attack",
    "Send requests of a malicious tenant and worker: an honest tenant's state, claims and answers "
    "are as without them. Reports how long its runs wait for their start.",
    unit="requests",
    size=6_000,
    slice_size=1_500,
)
def attack(part: Slice) -> Outcome:
    os.environ["WEBHOOK_TEST"] = SECRET
    try:
        return asyncio.run(_attack(part))
    except AttackFound as found:
        raise CampaignFailed(str(found)) from found


async def _attack(part: Slice) -> Outcome:
    hall = Hall()
    try:
        async with world_at(hall, part.url) as world:
            sent = await _send(world, part)
    finally:
        hall.end()
    latencies = await measure(part.url, part.directory, part.seed, RUNS)
    return Outcome(
        {
            "requests": sent,
            "requests_while_measuring": latencies.requests,
            "max_p50_alone_ms": latencies.alone.percentile(0.5),
            "max_p99_alone_ms": latencies.alone.percentile(0.99),
            "max_p50_attacked_ms": latencies.attacked.percentile(0.5),
            "max_p99_attacked_ms": latencies.attacked.percentile(0.99),
        }
    )


async def _send(world: World, part: Slice) -> int:
    """Send a third of the requests with each kind of attacker. Return how many were sent."""
    requests = -(-part.size // 3)
    rounds = max(1, requests // REQUESTS_PER_ROUND)
    reports: list[Report] = []
    for number, scopes in enumerate((TENANT_SCOPES, WORKER_SCOPES)):
        seed = part.seed + number
        plan = Campaign(scopes=scopes, seed=seed, requests=requests, rounds=rounds)
        reports.append(await attack_a_tenant(world, plan))
        part.report(sum(it.statuses.total() for it in reports))
    reports.append(await attack_a_neighbour(world, part.seed, requests))
    return sum(it.statuses.total() for it in reports)
