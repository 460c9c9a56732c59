"""A worker's record in the registry. The worker writes it with every heartbeat; operators write
a drain request into it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import msgspec

from perdure.engine.tasks.catalogue import (
    MOST_CONFLICTS,
    WORKER,
    Drain,
    WorkerEntry,
    decode_records,
    read_worker,
)
from perdure.engine.worker.versions import Tasks, schemas_of, versions_of
from perdure.errors import AccessRefused
from perdure.storage.contract.runs import Clock, Record
from perdure.storage.contract.storage import Storage

if TYPE_CHECKING:
    from perdure.engine.execution.loop_monitor import LoopWatch
    from perdure.engine.execution.worker_backend import WorkerBackend

MAX_BLOCKED_BY = 1000
"""Characters, as the worker protocol allows."""
UNREADABLE = "unreadable"
"""The key of a record that cannot be read. No key has this id, so no worker overwrites it."""


class WorkerRecord:
    """One worker's record, written by compare-and-set. With `key_id`, it belongs to that key."""

    def __init__(self, storage: Storage, environment: str, worker_id: str) -> None:
        self._storage = storage
        self._environment = environment
        self._worker_id = worker_id
        self._version = 0
        self._drain: Drain | None = None
        self.key_id: str | None = None

    @property
    def exists(self) -> bool:
        return self._version > 0

    async def put(self, entry: WorkerEntry) -> Drain | None:
        """Store the entry. Return the drain that an operator asked for. Raise AccessRefused if
        the record belongs to another key."""
        for _ in range(MOST_CONFLICTS):
            self.check_key(entry.key_id)
            if await self._put(msgspec.structs.replace(entry, drain=self._drain)):
                break
            await self.load()
        return self._drain

    def check_key(self, key_id: str | None) -> None:
        """Raise AccessRefused if the record belongs to another key."""
        if self.exists and self.key_id != key_id:
            problem = f"worker {self._worker_id!r:.80} was registered with another key"
            raise AccessRefused(f"{problem}; start the worker anew")

    async def load(self) -> None:
        """Read the record. Maintenance may have deleted it after a long silence."""
        found = await self._storage.records(self._environment, WORKER, self._worker_id)
        if not found:
            self._version, self.key_id = 0, None
            return
        self._version = found[0].version
        self._drain, self.key_id = None, UNREADABLE
        for entry in decode_records(found, read_worker):
            self._drain, self.key_id = entry.drain, entry.key_id

    async def _put(self, entry: WorkerEntry) -> bool:
        record = Record(
            environment=self._environment,
            kind=WORKER,
            name=self._worker_id,
            version=self._version + 1,
            body=msgspec.json.encode(entry).decode(),
        )
        [is_stored] = await self._storage.put([record])
        if is_stored:
            self._version, self.key_id = record.version, entry.key_id
        return is_stored


class Registration:
    """What a worker says of itself, sent with every heartbeat."""

    def __init__(self, clock: Clock, backend: WorkerBackend, worker_id: str) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._started_at = clock.now()

    async def beat(
        self,
        *,
        concurrency: int,
        running: int,
        tasks: Tasks,
        queues: tuple[str, ...] | None,
        stopping: bool,
        stopped: bool = False,
        not_importable: dict[str, str] | None = None,
        loop_watch: LoopWatch | None = None,
        awaiting: dict[str, str] | None = None,
    ) -> Drain | None:
        """Return the drain that an operator asked for, now or before."""
        entry = WorkerEntry(
            id=self._worker_id,
            host=socket.gethostname(),
            process_id=os.getpid(),
            started_at=self._started_at,
            concurrency=concurrency,
            running=running,
            queues=queues,
            tasks=tuple(tasks),
            versions=versions_of(tasks),
            schemas=schemas_of(tasks),
            not_importable=not_importable or {},
            loop_lag_seconds=0.0 if loop_watch is None else round(loop_watch.lag_s, 3),
            loop_blocked_by="" if loop_watch is None else loop_watch.blocked_by[:MAX_BLOCKED_BY],
            awaiting=awaiting or {},
            stopping=stopping,
            stopped=stopped,
        )
        return await self._backend.heartbeat(entry)
