"""The workers of one environment, each bound to the API key that registered it."""

from __future__ import annotations

import msgspec

from perdure.engine.app import App
from perdure.engine.catalogue import WORKER, Drain, WorkerEntry, read_worker
from perdure.engine.database_backend import DatabaseBackend
from perdure.engine.worker_record import WorkerRecord
from perdure.errors import AccessRefused, InvalidInput, WorkerNotFound

MAX_CACHED = 10_000
MAX_WORKERS_PER_KEY = 2000
MAX_ENTRY_BYTES = 256 * 1024


class WorkerRegistry:
    """Remembers records between requests, so that a heartbeat is one write."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._backend = DatabaseBackend(app, app.storage)
        self._records: dict[str, WorkerRecord] = {}

    async def heartbeat(self, entry: WorkerEntry) -> Drain | None:
        """Store the entry. Raise AccessRefused if the worker belongs to another key."""
        size = len(msgspec.json.encode(entry))
        if size > MAX_ENTRY_BYTES:
            problem = f"the worker's record has {size} bytes, more than {MAX_ENTRY_BYTES}"
            raise InvalidInput("tasks", f"{problem}; serve fewer tasks or queues in one worker")
        record = await self._record(entry.id)
        if not record.exists:
            await self._check_room(entry)
        drain = await record.put(entry)
        self._remember(entry.id, record)
        if not entry.stopped:
            await self._backend.forget_dead_workers()
        return drain

    async def check(self, worker_id: str, key_id: str) -> None:
        """Raise WorkerNotFound for a worker that never sent a heartbeat, AccessRefused for one
        of another key."""
        record = await self._record(worker_id)
        if not record.exists:
            raise WorkerNotFound(worker_id)
        record.check_key(key_id)

    async def is_of(self, worker_id: str, key_id: str) -> bool:
        record = await self._record(worker_id)
        return record.exists and record.key_id == key_id

    async def _record(self, worker_id: str) -> WorkerRecord:
        known = self._records.get(worker_id)
        if known is not None:
            return known
        record = WorkerRecord(self._app.storage, self._app.environment, worker_id)
        await record.load()
        if record.exists:
            self._remember(worker_id, record)
        return record

    def _remember(self, worker_id: str, record: WorkerRecord) -> None:
        """Keep those used last."""
        self._records.pop(worker_id, None)
        self._records[worker_id] = record
        while len(self._records) > MAX_CACHED:
            del self._records[next(iter(self._records))]

    async def _check_room(self, entry: WorkerEntry) -> None:
        found = await self._app.storage.records(self._app.environment, WORKER)
        own = sum(read_worker(record).key_id == entry.key_id for record in found)
        if own >= MAX_WORKERS_PER_KEY:
            problem = f"the key has {own} workers already, the most it may have"
            raise AccessRefused(f"{problem}; those that ended are forgotten after an hour")
