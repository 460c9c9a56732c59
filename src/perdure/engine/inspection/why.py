"""Gathers what `core.why` needs to know about a run: a few reads, each of them bounded.

They are not one snapshot. What `why` tells is what it was like while it asked.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from perdure.core.explain.inputs import MOST_COUNTED, MOST_NAMED
from perdure.core.explain.why import Facts, SeenWorker, Why, explain, explain_unreadable
from perdure.core.limits.admission import Gate, gates_of, needed_gates
from perdure.core.run.run import Run
from perdure.engine.inspection.wait_cycles import WaitReader
from perdure.engine.runtime import write
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import WorkerEntry, known_tasks, known_workers
from perdure.errors import UnreadableHistory
from perdure.storage.contract.storage import Storage
from perdure.storage.sql.write.limits import NO_LIMITS, UNREADABLE


async def explain_run(runtime: Runtime, run_id: str) -> Why:
    """Raises RunNotFound."""
    try:
        run = await write.load(runtime.storage, run_id, runtime.environment)
        return explain(await _gather(runtime, run))
    except UnreadableHistory as error:
        return explain_unreadable(run_id, await runtime.storage.now(), str(error))


async def _gather(runtime: Runtime, run: Run) -> Facts:
    storage = runtime.storage
    standing = await storage.standing(run.environment, gates_of(run))
    facts = Facts(
        run=run,
        now=standing.now,
        standing=standing,
        clock_ahead=_clock_ahead(runtime, standing.now),
        history=tuple(recorded.event for recorded in await storage.events(run.id)),
    )
    if run.is_terminal:
        successors = await storage.successors(run.environment, [run.id])
        letter = await storage.dead_letter(run.id)
        return replace(facts, dead_letter=letter, successor=successors.get(run.id))
    limits = {(it.scope, it.name): it for it in await storage.limits(run.environment)}
    live_since = facts.now - runtime.defaults.lease_ttl
    workers = [seen(it, live_since) for it in await known_workers(storage, run.environment)]
    reader = WaitReader(storage, run.environment, workers)
    is_stopped = not (run.holds_room or facts.is_due)
    cycle = None if is_stopped else await reader.cycle_of(run)
    facts = replace(facts, limits=limits, workers=tuple(workers), cycle=cycle)
    return facts if run.holds_room else await _about_the_queue(runtime, facts)


async def _about_the_queue(runtime: Runtime, facts: Facts) -> Facts:
    """What keeps a run that nobody has: gates, whoever holds them, workers, others before it."""
    storage, run = runtime.storage, facts.run
    gate = (await storage.gates([run.id])).get(run.id)
    shut = [it for it in needed_gates(run) if facts.standing.is_full(it)]
    tasks = await known_tasks(storage, run.environment)
    return replace(
        facts,
        parked_at=None if gate is None or gate in NO_LIMITS else Gate.parse(gate),
        is_put_aside=gate == UNREADABLE,
        holders={it: await _holders(storage, run, it) for it in shut},
        parked={it: await _parked(storage, run, it, gate) for it in shut},
        is_known_task=any(task.name == run.task for task in tasks),
        ahead=await _ahead(storage, facts) if gate is None else None,
    )


async def _holders(storage: Storage, run: Run, gate: Gate) -> tuple[Run, ...]:
    """A few of those that occupy a gate. One that has just let go is left out."""
    ids = await storage.holders(run.environment, gate, limit=MOST_NAMED)
    found = await storage.get(ids)
    return tuple(found[run_id] for run_id in ids if run_id in found)


async def _parked(storage: Storage, run: Run, gate: Gate, its_gate: str | None) -> int:
    """How many others are parked there."""
    found = await storage.parked(run.environment, gate, limit=MOST_COUNTED)
    return found - (its_gate == str(gate))


async def _ahead(storage: Storage, facts: Facts) -> int | None:
    if not facts.is_due:
        return None
    return await storage.ahead(facts.run, is_fair=facts.is_fair, limit=MOST_COUNTED)


def seen(worker: WorkerEntry, since: datetime) -> SeenWorker:
    """Return what `why` looks at; `since`: when a live worker was heard of at the latest."""
    return SeenWorker(
        id=worker.id,
        is_live=worker.is_live(since),
        is_stopping=worker.stopping,
        running=worker.running,
        concurrency=worker.concurrency,
        queues=worker.queues,
        tasks=worker.tasks,
        versions=worker.versions,
        not_importable=worker.not_importable,
        awaiting=worker.awaiting,
    )


def _clock_ahead(runtime: Runtime, now: datetime) -> timedelta:
    """How far this machine's clock is ahead, where the storage reads another one."""
    is_shared = runtime.storage.local_clock is not None
    return timedelta(0) if is_shared else runtime.clock.now() - now
