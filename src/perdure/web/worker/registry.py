"""The workers of one environment, each bound to the API key that registered it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.app.app import App
from perdure.core.json_text import NULL
from perdure.core.run.run import Run
from perdure.engine.protocol.chunks import count_one, in_parts
from perdure.engine.tasks.catalogue import (
    WORKER,
    Drain,
    WorkerEntry,
    decode_in_slices,
    read_worker,
)
from perdure.engine.worker.database_backend import DatabaseBackend
from perdure.engine.worker.record import WorkerRecord
from perdure.errors import AccessRefused, InvalidInput, WorkerNotFound

MAX_CACHED = 10_000
MAX_WORKERS_PER_KEY = 2000
MAX_ENTRY_BYTES = 256 * 1024
MAX_BYTES_PER_KEY = 16 * 1024 * 1024
"""JSON of all workers of a key."""
MAX_WORKERS = 10_000
"""Workers of an environment."""
MAX_BYTES = 64 * 1024 * 1024
"""JSON of all workers of an environment."""
MAX_RUNS_READ = 100
"""Runs, with their payloads, that a request of a worker reads at once."""
FEW_RUNS = 8
READERS = 8
"""Requests of an environment's workers that read more than a few runs at once. A request reads
`MAX_RUNS_READ` megabytes at most, and a key may have hundreds of requests under way."""
_FORGOTTEN = "those that ended are forgotten after an hour"


class WorkerRegistry:
    """Remembers records between requests, so that a heartbeat is one write."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._backend = DatabaseBackend(app.components, app.storage)
        self._records: dict[str, WorkerRecord] = {}
        self._checked_bytes: dict[str, int] = {}
        """By worker: the size of its record for which there was room when that was checked."""
        self._turns = asyncio.Semaphore(READERS)
        self._room_turn = asyncio.Lock()
        """One heartbeat at a time reads all records: they may have many megabytes."""

    async def heartbeat(self, entry: WorkerEntry) -> Drain | None:
        """Store the entry. Raise AccessRefused if the worker belongs to another key."""
        size = len(msgspec.json.encode(entry))
        if size > MAX_ENTRY_BYTES:
            problem = f"the worker's record has {size} bytes, more than {MAX_ENTRY_BYTES}"
            raise InvalidInput("tasks", f"{problem}; serve fewer tasks or queues in one worker")
        record = await self._record(entry.id)
        record.check_key(entry.key_id)
        if not record.exists or size > self._checked_bytes.get(entry.id, 0):
            async with self._room_turn:
                await self._check_room(entry, 2 * size)
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

    @asynccontextmanager
    async def turn(self, runs: int) -> AsyncIterator[None]:
        """Wait for a turn to hold so many runs in memory. A few need none."""
        if runs <= FEW_RUNS:
            yield
            return
        async with self._turns:
            yield

    async def own_leases(self, run_ids: Sequence[str], key_id: str) -> dict[str, Run]:
        """The same as `own_runs` for many, without payloads and results."""
        own: dict[str, Run] = {}
        for part in in_parts(run_ids, count_one, MAX_RUNS_READ):
            async with self.turn(len(part)):
                found = await self.own_runs(part, key_id)
            own |= {
                it.id: replace(it, payload_json=NULL, result_json=UNSET) for it in found.values()
            }
        return own

    async def own_runs(self, run_ids: Iterable[str], key_id: str) -> dict[str, Run]:
        """Return those of this environment that no other key's worker has leased."""
        found = await self._app.storage.get(list(dict.fromkeys(run_ids)))
        return {it.id: it for it in found.values() if await self._is_own(it, key_id)}

    async def _is_own(self, run: Run, key_id: str) -> bool:
        """A worker without a record was forgotten after a long silence: a token is enough."""
        if run.environment != self._app.environment:
            return False
        if run.lease is None:
            return True
        record = await self._record(run.lease.worker_id)
        return not record.exists or record.key_id == key_id

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
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._checked_bytes.pop(oldest, None)

    async def _check_room(self, entry: WorkerEntry, size: int) -> None:
        """Raise AccessRefused if the key or the environment has too many workers, or if their
        records and this one of `size` bytes are too large together."""
        records = await self._app.storage.records(self._app.environment, WORKER)
        sizes = {it.name: len(it.body.encode()) for it in records}
        found = await decode_in_slices(records, read_worker)
        others = {it.id: sizes.get(it.id, 0) for it in found if it.id != entry.id}
        own = {it.id for it in found if it.key_id == entry.key_id} & others.keys()
        of_key = [others[worker_id] for worker_id in own]
        _check_share("key", of_key, size, Share(MAX_WORKERS_PER_KEY, MAX_BYTES_PER_KEY))
        _check_share("environment", others.values(), size, Share(MAX_WORKERS, MAX_BYTES))
        self._checked_bytes[entry.id] = size


class Share(NamedTuple):
    """How many workers there may be, and the bytes of their records."""

    workers: int
    size: int


def _check_share(owner: str, sizes: Collection[int], size: int, share: Share) -> None:
    if len(sizes) >= share.workers:
        problem = f"the {owner} has {len(sizes)} workers already, the most it may have"
        raise AccessRefused(f"{problem}; {_FORGOTTEN}")
    if size + sum(sizes) > share.size:
        problem = f"the records of the {owner}'s workers would have over {share.size} bytes"
        raise AccessRefused(f"{problem}; {_FORGOTTEN}")
