"""What a worker needs of whatever keeps its runs: a database beside it, or a server.

A worker sends intentions (claim, renew, this attempt ended so); a backend turns them into events,
or sends them to a server that does. `DatabaseBackend` and `RemoteBackend` implement the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from perdure.core.decide.ending import Ending
from perdure.core.decide.lease import NO_EVIDENCE, Evidence
from perdure.core.run.commit import Commit
from perdure.core.run.lifecycle import EventType
from perdure.core.run.run import Run
from perdure.engine.observability.log_writer import SaidLog
from perdure.engine.runtime.storage_time import TimeSource
from perdure.engine.tasks.catalogue import Drain, TaskEntry, WorkerEntry
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.runs import ClaimRequest, Renewal, Renewed
from perdure.storage.contract.transactions import Transactions
from perdure.storage.contract.wakeups import HintTransport


class Finished(msgspec.Struct, gc=False):
    """An attempt that ended and is not recorded yet.

    `is_stuck`: its handler goes on, and keeps its slot until it ends. `is_refused`: the backend
    refused what the attempt ended with, and that refusal is recorded now. `is_prepared`: it may
    have been sent already. `commit` belongs to the `DatabaseBackend`.
    """

    run: Run
    token: str
    ending: Ending
    evidence: Evidence = NO_EVIDENCE
    is_stuck: bool = False
    is_refused: bool = False
    is_prepared: bool = False
    commit: Commit | None = None


class Recorded(msgspec.Struct, frozen=True, gc=False, tag="recorded", omit_defaults=True):
    """The ending is durable: as an event of type `event`, at `at`. `claimable_at`: when the run
    is due again; `reason`: why it became a dead letter."""

    event: EventType
    at: datetime
    claimable_at: datetime | None = None
    reason: str | None = None


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The lease is not the worker's any more. Nothing was recorded."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The ending cannot be recorded, now or later."""

    why: str


class Conflict(msgspec.Struct, frozen=True, tag="conflict"):
    """Another writer changed the run. Nothing was recorded: refresh the run and try again."""


ReportOutcome = Recorded | Lost | Refused | Conflict
"""What became of one reported ending."""

LOST = Lost()
CONFLICT = Conflict()


class WorkClaimed(msgspec.Struct, frozen=True, kw_only=True):
    """The claimed runs, each with an attempt begun; the outcome of each ending that travelled
    along; and when the next run is due."""

    runs: tuple[Run, ...] = ()
    outcomes: tuple[ReportOutcome, ...] = ()
    now: datetime
    next_claimable_at: datetime | None = None

    @property
    def recorded(self) -> list[Recorded]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Recorded)]


class ReturnedClaims(msgspec.Struct, frozen=True, kw_only=True):
    """Of the tokens in question: those that had become leases, and those given back."""

    found: frozenset[str] = frozenset()
    given_back: frozenset[str] = frozenset()


class WorkerBackend(TimeSource, Protocol):
    """Every call may raise StorageUnavailable: then nothing is half done."""

    loop_bound: bool
    """Whether it may only be used on the loop that used it first."""

    needs_registration: bool
    """Whether a worker must send a heartbeat before it claims."""

    def hint_transport(self) -> HintTransport | None: ...

    def transactions(self) -> Transactions: ...

    async def was_stored(self, commit: Commit) -> bool:
        """Return whether a transaction's commit whose answer was lost is stored."""
        ...

    async def close(self) -> None: ...

    def prepare(self, item: Finished, now: datetime, commit_id: str) -> None:
        """Make an ending ready to be sent. Raise LeaseLost, or what makes it impossible."""
        ...

    async def claim(self, request: ClaimRequest, finished: Sequence[Finished]) -> WorkClaimed:
        """Record the endings, then claim due runs: at most one for each token. If the answer is
        lost, `return_claims` gives back what was claimed."""
        ...

    async def report(self, finished: Sequence[Finished]) -> Sequence[ReportOutcome]:
        """Record the endings. May be repeated."""
        ...

    async def judge_misfits(self, items: Sequence[Finished], now: datetime) -> None:
        """Make the endings final whose payload fits no live worker."""
        ...

    async def refresh(self, items: Sequence[Finished]) -> set[str]:
        """Load the runs of these items anew, after a conflict. Return the ids that exist."""
        ...

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        """Keep leases for longer."""
        ...

    async def record_heartbeats(self, held: Mapping[str, Run], now: datetime) -> dict[str, Run]:
        """Record a heartbeat for those runs whose policy asks for it, where `renew` did not.
        Return the runs as they are then, by token."""
        ...

    async def return_claims(
        self, worker_id: str, tokens: frozenset[str], now: datetime
    ) -> ReturnedClaims:
        """Give back what was claimed with these tokens, whose answers were lost."""
        ...

    async def heartbeat(self, entry: WorkerEntry) -> Drain | None:
        """Store what the worker says of itself. Return the drain that an operator asked for."""
        ...

    async def find_suspects(self, scope: SuspectScope) -> Sequence[str]:
        """Return due runs that are executed alone, by id."""
        ...

    async def write_logs(self, said: Sequence[SaidLog]) -> None: ...

    async def known_tasks(self) -> list[TaskEntry]:
        """Return the catalogue, with targets."""
        ...
