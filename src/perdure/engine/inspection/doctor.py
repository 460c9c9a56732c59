"""`app.doctor()`: looks at an app's database, and at who works on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from perdure.core.explain.health import (
    Code,
    Facts,
    Finding,
    Vitals,
    WebhookFact,
    examine,
    unusable,
)
from perdure.core.explain.wait_cycles import describe_cycle
from perdure.core.limits.admission import Gate
from perdure.core.webhook import WebhookState
from perdure.engine.inspection.wait_cycles import WaitReader
from perdure.engine.inspection.why import seen
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.runtime.runtime import Components
from perdure.engine.tasks.catalogue import WorkerEntry, known_workers
from perdure.engine.webhooks.webhook import Hook, read_hooks
from perdure.errors import InvalidInput, SchemaMismatch, StorageError
from perdure.storage.contract.runs import Backlog
from perdure.storage.contract.storage import Storage

MOST_GATES = 1_000
MOST_COUNTED = 1_000
TICKS = 5
"""So many ticks of maintenance a gate may have room before it is stuck."""


class Examination(msgspec.Struct, frozen=True):
    """What was found, problems first; and how the database is, if it could be asked."""

    findings: tuple[Finding, ...]
    vitals: Vitals | None = None

    @property
    def is_healthy(self) -> bool:
        return not any(finding.is_problem for finding in self.findings)


async def examine_database(components: Components, storage: Storage) -> Examination:
    """Needs no open app: one that cannot be opened is what it is for. Close the storage."""
    try:
        await storage.check_schema()
        return await examine_storage(components, storage)
    except SchemaMismatch as error:
        return Examination((unusable(error, Code.SCHEMA),))
    except StorageError as error:
        return Examination((unusable(error, Code.UNREACHABLE),))
    finally:
        await storage.close()


async def examine_storage(components: Components, storage: Storage) -> Examination:
    """The same, in a storage that can be reached. Raises StorageError."""
    facts = await _facts(components, storage)
    return Examination(tuple(examine(facts)), facts.vitals)


async def _facts(components: Components, storage: Storage) -> Facts:
    before = components.clock.now()
    now = await storage.now()
    local = before + (components.clock.now() - before) / 2
    workers = await known_workers(storage, components.environment)
    live = [worker for worker in workers if worker.is_live(now - components.defaults.lease_ttl)]
    silent = [worker for worker in workers if worker not in live and not worker.stopped]
    backlogs = await storage.backlog(components.environment)
    return Facts(
        now=now,
        vitals=await storage.vitals(),
        retention=components.defaults.retention,
        clock_ahead=local - now,
        neglect=await storage.neglect(components.environment, limit=MOST_COUNTED),
        stuck=await _stuck_gates(components, storage),
        silent=tuple(f"{it.id} on {it.host}" for it in silent),
        unserved=tuple(it.queue for it in backlogs if it.due and not _serving(it, live)),
        unserved_tasks=tuple(_unserved_tasks(backlogs, live)),
        not_importable=tuple(_not_importable(live)),
        blocked_loops=tuple(_blocked_loops(live)),
        cycles=tuple(await _cycles(components, storage, live, now)),
        webhooks=await _webhooks(components, storage, now),
    )


async def _cycles(
    components: Components, storage: Storage, live: list[WorkerEntry], now: datetime
) -> list[str]:
    seen_workers = [seen(it, now - components.defaults.lease_ttl) for it in live]
    cycles = await WaitReader(storage, components.environment, seen_workers).cycles()
    return [describe_cycle(cycle) for cycle in cycles]


def _not_importable(live: list[WorkerEntry]) -> Iterator[str]:
    for worker in live:
        for task, problem in worker.not_importable.items():
            yield f"{task} on {worker.host} ({problem})"


def _blocked_loops(live: list[WorkerEntry]) -> Iterator[str]:
    for worker in live:
        if worker.loop_blocked_by and worker.seen_at:
            since = worker.seen_at - timedelta(seconds=worker.loop_lag_seconds)
            at = f"{since:%Y-%m-%d %H:%M:%S} UTC"
            yield f"{worker.loop_blocked_by}, since {at}, on {worker.host}"


def _serving(backlog: Backlog, live: list[WorkerEntry]) -> list[WorkerEntry]:
    return [it for it in live if it.queues is None or backlog.queue in it.queues]


def _unserved_tasks(backlogs: Sequence[Backlog], live: list[WorkerEntry]) -> Iterator[str]:
    """Name due runs whose task or version no worker of their queue has."""
    for backlog in backlogs:
        serving = _serving(backlog, live)
        for task, version in backlog.due_versions if serving else ():
            if not any(task in it.tasks and it.versions.get(task, 0) >= version for it in serving):
                needed = f"{task} of version {version} or newer" if version else task
                yield f"{needed} in queue {backlog.queue}"


async def _webhooks(
    components: Components, storage: Storage, now: datetime
) -> tuple[WebhookFact, ...]:
    hooks, quarantined = await read_hooks(storage, components.environment)
    facts = [await _webhook(hook, storage, now) for hook in hooks]
    facts += [
        WebhookFact(
            name=hook.name,
            state=WebhookState.QUARANTINED,
            why=str(Showing(components.redactor).text(hook.why)),
        )
        for hook in quarantined
    ]
    return tuple(facts)


async def _webhook(hook: Hook, storage: Storage, now: datetime) -> WebhookFact:
    """One that is paused, disabled or failing has a reason to be behind."""
    progress = hook.progress
    try:
        waiting = await storage.changes(progress.cursor, limit=1)
    except InvalidInput as error:
        return WebhookFact(name=hook.name, state=WebhookState.QUARANTINED, why=str(error))
    is_idle = hook.state is not WebhookState.ACTIVE or not waiting
    return WebhookFact(
        name=hook.name,
        state=hook.state,
        why=(progress.disabled.why if progress.disabled else progress.why) or "",
        behind=timedelta(0) if is_idle else now - waiting[0].events[0].occurred_at,
        gap=progress.gap is not None,
    )


async def _stuck_gates(components: Components, storage: Storage) -> tuple[str, ...]:
    """Looked at twice: room that was just made is found by the next tick."""
    first = await _gates_with_room(components, storage)
    if not first:
        return ()
    await components.clock.sleep(TICKS * components.defaults.maintenance_tick)
    both = sorted(first & await _gates_with_room(components, storage))
    return tuple(" ".join(filter(None, (it.scope.value, it.name, it.key))) for it in both)


async def _gates_with_room(components: Components, storage: Storage) -> set[Gate]:
    gates = await storage.parking(components.environment, limit=MOST_GATES)
    standing = await storage.standing(components.environment, gates)
    return {gate for gate in gates if standing.room(gate, 1) > 0}
