"""When maintenance and scheduler last completed a pass, as status and metrics show it."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from math import inf

import msgspec

from perdure.core.json_text import Instant
from perdure.engine.observability.metrics import Metrics
from perdure.engine.runtime.runtime import RuntimeProvider
from perdure.engine.tasks.catalogue import decode_records
from perdure.storage.contract.runs import Record
from perdure.storage.contract.storage import Storage

SERVICE = "service"
"""The kind of these records."""


class ServiceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One service of an environment, and the process of it that ticked last. `ticked_at` is the
    storage's time."""

    name: str
    host: str
    process_id: int
    started_at: Instant
    ticked_at: Instant | None = None


class TickRecord:
    """Records complete passes of one service: in this process's metrics each of them, and in the
    storage at most one per renewal interval, however many processes run the service."""

    def __init__(self, provider: RuntimeProvider, metrics: Metrics, service: str) -> None:
        components = provider.components
        self._provider = provider
        self._metrics = metrics
        self._service = service
        self._environment = components.environment
        self._clock = components.clock
        self._interval = components.defaults.renewal_interval
        self._started_at = self._clock.now()
        self._checked_at = -inf

    async def record(self, now: datetime) -> None:
        """Record a pass that is complete at `now`, the storage's time."""
        self._metrics.record_tick(self._service, now)
        elapsed = self._clock.elapsed()
        if elapsed - self._checked_at >= self._interval.total_seconds():
            await self._store(now)
            self._checked_at = elapsed

    async def _store(self, now: datetime) -> None:
        storage = self._provider.runtime.storage
        records = await storage.records(self._environment, SERVICE)
        known = next((it for it in records if it.name == self._service), None)
        age = None if known is None or known.seen_at is None else now - known.seen_at
        if age is not None and timedelta(0) <= age < self._interval:
            return
        # If another process stores its tick at the same time, that one is as good.
        await storage.put([self._record(0 if known is None else known.version)])

    def _record(self, version: int) -> Record:
        entry = ServiceEntry(
            name=self._service,
            host=socket.gethostname(),
            process_id=os.getpid(),
            started_at=self._started_at,
        )
        return Record(
            environment=self._environment,
            kind=SERVICE,
            name=self._service,
            version=version + 1,
            body=msgspec.json.encode(entry).decode(),
        )


async def list_services(storage: Storage, environment: str) -> list[ServiceEntry]:
    """Return the services of an environment that have ticked."""
    return decode_records(await storage.records(environment, SERVICE), _decode_service)


def _decode_service(record: Record) -> ServiceEntry:
    entry = msgspec.json.decode(record.body, type=ServiceEntry)
    return msgspec.structs.replace(entry, ticked_at=record.seen_at)
