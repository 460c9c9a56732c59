"""A malicious worker in the environment of honest ones. It may claim what is due and trigger runs;
what others hold, and what operators made, it must not touch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
from perdure.core.run.run import Actor, ActorType, Run, Source, SourceType
from perdure.engine.operators.keys import Keys
from perdure.storage.contract.runs import RunFilter
from remote_kit import World

ENVIRONMENT = "shared"
RUNS = 6
ROUNDS = 4
MAX_RUNS = 5000
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
    storage, own = honest.app.storage, honest.environment
    found = await storage.find(RunFilter(environment=own), limit=MAX_RUNS)
    runs = {run.id: run for run in found.runs}
    keys = await Keys(honest.app.runtime).list()
    actors = [Actor(ActorType.CLIENT, it.actor.id) for it in keys if it.id in attacker.key_ids]
    now = await storage.now()
    for run in runs.values():
        if run.id not in honest.labels:
            _check_creation(run, actors)
            _check_lineage(run, runs, honest)
            _check_lease(run, now)


def _check_creation(run: Run, actors: Sequence[Actor]) -> None:
    if run.created_by not in actors:
        raise AttackFound(f"{run.id} was created by {run.created_by}, not by {actors}")
    if run.task.startswith("perdure."):
        raise AttackFound(f"{run.id} is of the reserved task {run.task}")


def _check_lineage(run: Run, runs: Mapping[str, Run], honest: Honest) -> None:
    """Any run of the environment may be continued. A parent is a run that the attacker held, which
    honest runs never are. Source and root follow from those two."""
    if run.parent_id in honest.labels:
        raise AttackFound(f"{run.id} names the honest run {run.parent_id} as its parent")
    source, root_id = Source(), run.id
    if run.parent_id is not None:
        source, root_id = Source(type=SourceType.SPAWN), runs[run.parent_id].root_id
    if run.continuation_of is not None:
        source = Source(type=SourceType.CONTINUATION, run_id=run.continuation_of)
        root_id = runs[run.continuation_of].root_id
    if (run.source, run.root_id) != (source, root_id):
        found = f"{run.source} and the root {run.root_id}"
        raise AttackFound(f"{run.id} comes from {found}, not from {source} and {root_id}")


def _check_lease(run: Run, now: datetime) -> None:
    if run.lease is not None and run.lease.expires_at - now > MAX_LEASE_TTL:
        raise AttackFound(f"the lease of {run.id} lasts until {run.lease.expires_at}")
