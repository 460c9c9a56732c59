"""Guards of the server, each taken away: the attackers must find what follows.

Patched by name, so that a guard that has moved breaks its test instead of being missed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec

from attack.attackers import TENANT_SCOPES, WORKER_SCOPES
from attack.campaign import Campaign, Report, attack_a_tenant
from attack.neighbour import attack_a_neighbour
from perdure.core.decide import lease
from perdure.core.decide.ending import decide_ending
from perdure.engine.execution.worker_backend import LOST, ReturnedClaims
from perdure.engine.worker.database_backend import DatabaseBackend
from perdure.engine.worker.record import WorkerRecord
from perdure.web import api
from perdure.web.worker import attempts
from perdure.web.worker import declarations as declaring
from perdure.web.worker import reports as reporting
from perdure.web.worker import triggers as triggering
from perdure.web.worker.declarations import Declaring
from perdure.web.worker.registry import WorkerRegistry
from perdure.web.worker.reports import Reporting
from remote_kit import World

Patch = Callable[[Any, str, Any], None]
"""`monkeypatch.setattr`: object, name, new value."""
Attack = Callable[[World, int, int], Awaitable[Report]]
"""Takes the world, the seed and the number of requests."""


class Bug(msgspec.Struct, frozen=True):
    name: str
    attack: Attack
    apply: Callable[[Patch], None]


BANK: list[Bug] = []


async def by_a_tenant(world: World, seed: int, requests: int) -> Report:
    campaign = Campaign(scopes=TENANT_SCOPES, seed=seed, requests=requests, rounds=1)
    return await attack_a_tenant(world, campaign)


async def by_a_worker(world: World, seed: int, requests: int) -> Report:
    campaign = Campaign(scopes=WORKER_SCOPES, seed=seed, requests=requests, rounds=1)
    return await attack_a_tenant(world, campaign)


def bug(name: str, attack: Attack) -> Callable[[Callable[[Patch], None]], None]:
    def keep(apply: Callable[[Patch], None]) -> None:
        BANK.append(Bug(name, attack, apply))

    return keep


def _check_nothing(*_: Any, **__: Any) -> None:
    """Instead of a check."""


@bug("any key speaks for any worker", attack_a_neighbour)
def _(patch: Patch) -> None:
    patch(WorkerRecord, "check_key", _check_nothing)


async def _is_of_environment(self: Any, run: Any, key_id: str) -> bool:
    """Instead of a check of the key, too: a lease has two guards, its key and its token."""
    return bool(run.environment == self._app.environment)


@bug("logs need no lease's token", attack_a_neighbour)
def _(patch: Patch) -> None:
    patch(WorkerRegistry, "_is_own", _is_of_environment)
    patch(attempts, "_holds", lambda run, message: run.lease is not None)


@bug("a report needs no lease's token", attack_a_neighbour)
def _(patch: Patch) -> None:
    def decide_for_anyone(run: Any, token: str, *rest: Any) -> Any:
        return decide_ending(run, run.lease.token, *rest)

    def decide_one(self: Any, report: Any, runs: Any, now: Any, live: Any) -> Any:
        run = runs.get(report.run_id)
        return LOST if run is None or run.lease is None else self._commit(report, run, now, live)

    patch(WorkerRegistry, "_is_own", _is_of_environment)
    patch(reporting, "decide_ending", decide_for_anyone)
    patch(Reporting, "_decide_one", decide_one)


@bug("leases and logs of every environment are found", by_a_worker)
def _(patch: Patch) -> None:
    async def all_runs(self: Any, run_ids: Any, key_id: str) -> Any:
        return await self._app.storage.get(list(dict.fromkeys(run_ids)))

    patch(WorkerRegistry, "own_runs", all_runs)


@bug("claims of every environment are given back", by_a_worker)
def _(patch: Patch) -> None:
    return_claims = DatabaseBackend.return_claims

    async def return_any(self: Any, worker_id: str, tokens: Any, now: Any) -> Any:
        for run in await self._storage.leases(worker_id):
            components = dataclasses.replace(self._components, environment=run.environment)
            other = DatabaseBackend(components, self._storage)
            await return_claims(other, worker_id, tokens, now)
        return ReturnedClaims()

    patch(DatabaseBackend, "return_claims", return_any)


@bug("operators order about runs of every environment", by_a_tenant)
def _(patch: Patch) -> None:
    async def any_run(call: Any) -> Any:
        return (await call.app.storage.get([call.path["run_id"]]))[call.path["run_id"]]

    patch(api, "_own_run", any_run)


@bug("reserved tasks can be triggered", attack_a_neighbour)
def _(patch: Patch) -> None:
    patch(triggering, "refuse_reserved", _check_nothing)


@bug("a lease may last for ten years", attack_a_neighbour)
def _(patch: Patch) -> None:
    patch(declaring, "lease_length", _check_nothing)
    patch(lease, "MAX_LEASE_TTL", timedelta(days=3650))


@bug("one bad item refuses the whole batch", by_a_worker)
def _(patch: Patch) -> None:
    patch(triggering, "_wish_or_error", triggering._wish)


@bug("a worker strips targets", attack_a_neighbour)
def _(patch: Patch) -> None:
    patch(Declaring, "_check_targets", _check_nothing)
    patch(Declaring, "_replaces", lambda self, new, known: True)


@bug("any run can be named as the parent", attack_a_neighbour)
def _(patch: Patch) -> None:
    patch(triggering, "_check_lineage", _check_nothing)
