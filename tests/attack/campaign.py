"""Plays one scenario twice on one database: alone, then beside an attacker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from attack.attackers import Attacker, AttackFound, attacker_at, make_credentials
from attack.honest import MARKER, Honest, honest_at
from attack.snapshot import State, differences, read_state
from remote_kit import World

CALM, ATTACKED, ATTACKERS = "calm", "beset", "elsewhere"
"""The environments, each followed by the seed."""
Beside = Callable[[], Coroutine[Any, Any, None]]


class Campaign(msgspec.Struct, kw_only=True):
    """How large an attack is. `scopes`: those of each of the attacker's keys."""

    scopes: Sequence[tuple[str, ...]]
    seed: int
    requests: int
    rounds: int = 2


class Report(msgspec.Struct):
    """What an attack did: the number of its requests for each status of an answer."""

    statuses: Counter[int]
    passes: list[int]


async def attack_a_tenant(world: World, campaign: Campaign) -> Report:
    """Raise AttackFound if anything of an honest tenant differs because of the attacker."""
    seed = campaign.seed
    async with honest_at(world, f"{CALM}-{seed}", seed) as calm:
        await _play(calm, campaign.rounds, _nothing)
        alone = await read_state(calm)
        async with honest_at(world, f"{ATTACKED}-{seed}", seed) as honest:
            victim, elsewhere = honest.victim(with_leases=True), f"{ATTACKERS}-{seed}"
            keys = await make_credentials(world, elsewhere, campaign.scopes)
            async with attacker_at(world.address, seed, victim, elsewhere, keys) as it:
                it.secrets = {calm.environment.encode()}  # no attacker knows that it exists
                await _play(honest, campaign.rounds, _attack(it, honest, campaign))
                _compare("the attacked tenant", alone, await read_state(honest), it)
                _compare("a tenant that rested", alone, await read_state(calm), it)
                if calm.passes != honest.passes:
                    raise AttackFound(f"claims took {honest.passes}, alone {calm.passes} passes")
                return Report(it.statuses, honest.passes)


def _attack(attacker: Attacker, honest: Honest, campaign: Campaign) -> Beside:
    """Return what sends a part of the attack during each step."""
    steps = sum(1 for _ in honest.steps(campaign.rounds))
    part = -(-campaign.requests // steps)

    async def send() -> None:
        attacker.knowledge.victim = victim = honest.victim(with_leases=True)
        attacker.secrets |= {MARKER.encode(), *(token.encode() for _, token, _ in victim.leases)}
        await attacker.send(part)

    return send


async def _play(honest: Honest, rounds: int, beside: Beside) -> None:
    for name, step in honest.steps(rounds):
        await play(name, step(), beside())


async def play(name: str, step: Awaitable[None], attack: Coroutine[Any, Any, None]) -> None:
    """Await both at the same time. Raise AttackFound if the step fails."""
    attacking = asyncio.ensure_future(attack)
    try:
        await step
    except Exception as error:
        raise AttackFound(f"{name} failed: {error!r}") from error
    finally:
        await attacking


def _compare(which: str, alone: State, found: State, attacker: Attacker) -> None:
    lines = differences(alone, found)
    if lines:
        raise AttackFound("\n".join([f"{which} differs:", *lines, "at last:", *attacker.last]))


async def _nothing() -> None:
    """There is no attacker."""
