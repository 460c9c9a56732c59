"""`app.workers`: who works, and who shall end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from perdure.core.run.run import Run
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.input import OPERATOR, By, actor_of, reason_of, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import (
    MOST_CONFLICTS,
    WORKER,
    Drain,
    WorkerEntry,
    known_workers,
    read_worker,
)
from perdure.engine.tasks.reserved_names import RESERVED
from perdure.errors import InvalidInput, StorageUnavailable, WorkerNotFound
from perdure.storage.contract.runs import Record


@explain_methods
class Workers:
    """Those of the app's environment, by id."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list(self) -> Sequence[WorkerEntry]:
        """Every worker that said so within the last hour; `seen_at` tells when it last did."""
        storage, environment = self._runtime.storage, self._runtime.environment
        since = await storage.now() - self._runtime.defaults.lease_ttl
        entries = await known_workers(storage, environment)
        held = await storage.held(environment)  # last, so that a stopped worker holds nothing
        return [
            replace(entry, running=held.get(entry.id, 0), state=entry.state_since(since))
            for entry in entries
        ]

    async def leases(self, worker_id: str) -> Sequence[Run]:
        """The runs a worker holds. Raises WorkerNotFound for one that nobody has heard of."""
        found = await self._runtime.storage.leases(text(worker_id, "worker_id"))
        held = [run for run in found if run.environment == self._runtime.environment]
        if not held:
            await self._record(worker_id)
        return held

    async def drain(
        self, worker_id: str, reason: str | None = None, *, by: By = OPERATOR
    ) -> WorkerEntry:
        """Ask a worker to end as SIGTERM would: it claims no more, lets its runs end until its
        drain is over, hands over the rest, and its process exits. Asking twice changes nothing.

        Raises WorkerNotFound, also for one that has ended or was not heard of for a lease.
        """
        wish = Drain(by=actor_of(by), at=self._runtime.now(), reason=reason_of(reason))
        for _ in range(MOST_CONFLICTS):
            record = await self._record(text(worker_id, "worker_id"))
            entry = read_worker(record)
            await self._check(entry)
            if entry.drain is not None:
                return replace(entry, state="draining")
            asked = replace(entry, drain=wish, stopping=True, seen_at=None)
            if await self._put(record, asked):
                self._runtime.hints.publish([hints.drain(worker_id)])
                return replace(asked, seen_at=entry.seen_at, state="draining")
        raise StorageUnavailable(f"worker {worker_id} speaks all the time; ask again")

    async def _record(self, worker_id: str) -> Record:
        environment = self._runtime.environment
        for record in await self._runtime.storage.records(environment, WORKER, worker_id):
            return record
        raise WorkerNotFound(worker_id)

    async def _check(self, entry: WorkerEntry) -> None:
        """A server's own worker carries out orders about many: without it they would be stuck."""
        if entry.tasks and all(task.startswith(RESERVED) for task in entry.tasks):
            problem = f"{entry.id} belongs to the server of process {entry.process_id}; stop that"
            raise InvalidInput("worker_id", problem)
        since = await self._runtime.storage.now() - self._runtime.defaults.lease_ttl
        if not entry.is_live(since):
            raise WorkerNotFound(entry.id)

    async def _put(self, known: Record, entry: WorkerEntry) -> bool:
        body = msgspec.json.encode(entry).decode()
        [stored] = await self._runtime.storage.put(
            [replace(known, version=known.version + 1, body=body)]
        )
        return stored
