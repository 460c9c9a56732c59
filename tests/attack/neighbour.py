"""A malicious worker in the environment of honest ones. It may claim what is due and trigger runs;
what others hold, and what operators made, it must not touch."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from attack.attackers import (
    WORKER_SCOPES,
    Attacker,
    AttackFound,
    attacker_at,
    make_credentials,
)
from attack.campaign import Report, play
from attack.honest import Honest, honest_at
from attack.snapshot import State, differences, read_state
from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run.run import ActorType, Run, SourceType
from perdure.storage.contract.runs import RunFilter
from remote_kit import World

ENVIRONMENT = "shared"
RUNS = 6
ROUNDS = 4
MAX_RUNS = 5000
OWN_SOURCES = (SourceType.TRIGGER, SourceType.SPAWN, SourceType.CONTINUATION)
UNTOUCHED = ("schedules", "webhooks", "posts", "audit_flaws", "limits")
"""Parts of the state that must be as before."""


async def attack_a_neighbour(world: World, seed: int, requests: int) -> Report:
    """Raise AttackFound if the worker reaches what it must not."""
    async with honest_at(world, f"{ENVIRONMENT}-{seed}", seed) as honest:
        await _begin_work(honest)
        before, held = await read_state(honest), {run.id: run for run in honest.held}
        victim = honest.victim(with_leases=False)
        own = honest.environment
        keys = await make_credentials(world, own, WORKER_SCOPES)
        async with attacker_at(world.address, seed, victim, own, keys) as attacker:
            attacker.secrets = {run.lease.token.encode() for run in honest.held if run.lease}
            for _ in range(ROUNDS):
                await play("the work", _go_on(honest), attacker.send(-(-requests // ROUNDS)))
                _compare(before, await read_state(honest), attacker)
                await _check_leases(honest, held)
            await _check_strangers(honest, attacker)
            await play("the end", _end_work(honest), asyncio.sleep(0))
            return Report(attacker.statuses, honest.passes)


async def _begin_work(honest: Honest) -> None:
    """One run has ended, others are held by both workers."""
    await honest.trigger_doubles("ended", 1)
    await honest.begin_beside_the_database("")
    await honest.end_beside_the_database("")
    await honest.trigger_doubles("held", RUNS)
    for worker in (honest.remote, honest.embedded):
        await worker.claim(RUNS // 2)
        await worker.log()


async def _go_on(honest: Honest) -> None:
    """What workers and operators do meanwhile."""
    for worker in (honest.remote, honest.embedded):
        await worker.beat()
        await worker.renew()
        await worker.log()
    await honest.look("")


async def _end_work(honest: Honest) -> None:
    for worker in (honest.remote, honest.embedded):
        await worker.report()
    state = await read_state(honest)
    for label in honest.labels.values():
        assert state["runs"][label]["result"] == {"label": label}, state["runs"][label]


def _compare(before: State, after: State, attacker: Attacker) -> None:
    lines = [
        line for part in UNTOUCHED for line in differences(before[part], after[part], f".{part}")
    ]
    for part in ("runs", "workers", "keys"):
        for name, value in before[part].items():
            lines += differences(value, after[part].get(name), f".{part}.{name}")
    known = len(before["audit"])
    lines += differences(before["audit"], after["audit"][:known], ".audit")
    lines += [f"{it} is forged" for it in after["audit"][known:] if not _is_of(it, attacker)]
    lines += differences(_targets(before), _targets(after), ".targets")
    if lines:
        raise AttackFound("\n".join([*lines, "at last:", *attacker.last]))


def _is_of(audited: Any, attacker: Attacker) -> bool:
    return any(key_id in audited[2] for key_id in attacker.key_ids)


def _targets(state: State) -> list[Any]:
    return [it for it in state["catalogue"] if it["target"] is not None]


async def _check_leases(honest: Honest, held: dict[str, Run]) -> None:
    """The same tokens, renewed by their holders."""
    for run_id, run in (await honest.app.storage.get(list(held))).items():
        was = held[run_id].lease
        assert was is not None
        if run.lease is None or (run.lease.token, run.lease.worker_id) != (
            was.token,
            was.worker_id,
        ):
            raise AttackFound(f"the lease {was} became {run.lease}")


async def _check_strangers(honest: Honest, attacker: Attacker) -> None:
    """Runs that the attacker made are its own, and its leases end."""
    found = await honest.app.storage.find(RunFilter(environment=honest.environment), limit=MAX_RUNS)
    now = await honest.app.storage.now()
    for run in found.runs:
        if run.id not in honest.labels:
            _check_stranger(run, honest, attacker, now)


def _check_stranger(run: Run, honest: Honest, attacker: Attacker, now: datetime) -> None:
    own = attacker.key_ids
    if run.created_by.type is not ActorType.CLIENT or not any(
        key_id in str(run.created_by.id) for key_id in own
    ):
        raise AttackFound(f"{run.id} was created by {run.created_by}, not by {own}")
    if run.task.startswith("perdure."):
        raise AttackFound(f"{run.id} is of the reserved task {run.task}")
    lineage = {run.parent_id, run.root_id, run.continuation_of, run.source.run_id}
    if run.continuation_of is not None:  # any run of the environment may be continued
        lineage = {run.parent_id}
    if run.source.type not in OWN_SOURCES or lineage & honest.labels.keys():
        raise AttackFound(f"{run.id} comes from {run.source} and {lineage}")
    if run.lease is not None and run.lease.expires_at - now > MAX_LEASE_TTL:
        raise AttackFound(f"the lease of {run.id} lasts until {run.lease.expires_at}")
