"""What a client was promised, and whether the database kept it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from perdure import App, RunHandle
from perdure.core.run.events import RecordedEvent, RunLeaseClaimed
from perdure.core.run.lifecycle import TERMINAL, EventType
from perdure.core.run.reducer import replay
from perdure.core.run.run import ActorType
from perdure.engine.inspection.verify import Audit, StoredRuns
from perdure.errors import (
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunUnsuccessful,
    StorageUnavailable,
)
from perdure.storage.contract.storage import Storage

ENDED = {EventType(f"run.{status.value}") for status in TERMINAL}

WHILE_LEASED = {
    EventType.STARTED,
    EventType.LEASE_HEARTBEAT,
    EventType.CANCELLATION_REQUESTED,
}


@dataclass
class Promise:
    """One acknowledged trigger: what it must come to, and what the client was told."""

    handle: RunHandle[Any]
    expected: Any
    told: Any = None
    is_told: bool = False


@dataclass
class Recovery:
    """A lease that was taken from its worker, and when the run was claimed again."""

    run_id: str
    worker_id: str
    at: datetime
    claimed_again_at: datetime | None = None


@dataclass
class Findings:
    """What became of every promise."""

    lost: list[str] = field(default_factory=list)
    double_completed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)


class Ledger:
    """Remembers each acknowledged trigger, and waits for its result as a client would."""

    def __init__(self, app: App) -> None:
        self.promises: dict[str, Promise] = {}
        self._app = app
        self._waiting: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        return len(self._waiting)

    def acknowledge(self, handle: RunHandle[Any], expected: Any) -> None:
        promise = Promise(handle, expected)
        self.promises[handle.id] = promise
        waiting = asyncio.create_task(self._hear(promise))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    async def _hear(self, promise: Promise) -> None:
        try:
            promise.told = await promise.handle.result()
        except RunUnsuccessful as error:
            promise.told = type(error)
        except RunNotFound:
            return  # `check` will say so
        promise.is_told = True

    async def settle(self, seconds: float) -> None:
        """Wait until every promise has come to something, or time is up."""
        if self._waiting:
            await asyncio.wait(set(self._waiting), timeout=seconds)
        for waiting in list(self._waiting):
            waiting.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def check(self) -> Findings:
        """Every promise against the stored histories."""
        found = Findings()
        for run_id, promise in self.promises.items():
            try:
                history = await self._app.runs.events(run_id)
            except RunNotFound:
                found.lost.append(run_id)
                continue
            if sum(recorded.type in ENDED for recorded in history) > 1:
                found.double_completed.append(run_id)
            if not promise.is_told:
                found.stuck.append(run_id)
            elif promise.told != promise.expected or promise.told != _stored(history):
                found.wrong.append(run_id)
            found.recoveries += recoveries_in(run_id, history)
        return found


def _stored(history: Sequence[RecordedEvent]) -> Any:
    """What a client would be told now."""
    run = replay([recorded.event for recorded in history])
    match run.status:
        case "succeeded":
            return run.result
        case "cancelled":
            return RunCancelled
        case _:
            return RunFailed


def recoveries_in(run_id: str, history: Sequence[RecordedEvent]) -> list[Recovery]:
    """Wherever somebody else than its worker ended a lease."""
    found: list[Recovery] = []
    holder: str | None = None
    for event in (recorded.event for recorded in history):
        if isinstance(event, RunLeaseClaimed):
            if found and found[-1].claimed_again_at is None:
                found[-1].claimed_again_at = event.occurred_at
            holder = event.worker_id
        elif holder is not None and event.actor.type is ActorType.SYSTEM:
            found.append(Recovery(run_id, holder, event.occurred_at))
            holder = None
        elif event.type not in WHILE_LEASED:
            holder = None
    return found


async def insist(trigger: Any, *arguments: Any) -> RunHandle[Any] | None:
    """Trigger; without an answer there is no promise, only perhaps a run."""
    try:
        handle: RunHandle[Any] = await trigger(*arguments)
    except StorageUnavailable:
        return None
    return handle


async def mismatches(storage: Storage, environment: str = "default") -> int:
    """What `perdure audit` would find, each of it told."""
    audit = Audit(StoredRuns(storage, environment))
    async for finding in audit.findings():
        print(f"MISMATCH: {finding.run_id}: {finding.problem}", file=sys.stderr)
    return audit.totals.mismatches
