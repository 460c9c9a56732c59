"""The storage contract. Adapters remember and select; they never decide.

Whatever an adapter writes, it writes by compare-and-set, in one transaction, all of it or
nothing. Storage time decides: `now` in the answers is the storage's own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from perdure.core.limits.admission import Gate, Standing
from perdure.core.limits.settings import Limit
from perdure.core.run.commit import Commit
from perdure.core.run.effects import KeyFreed
from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.storage.contract.explanation import Questions
from perdure.storage.contract.inspection import Oversight
from perdure.storage.contract.logs import LogBatch, LogLine, Progress
from perdure.storage.contract.reservation import ReserveRequest
from perdure.storage.contract.runs import (
    Backlog,
    Change,
    Claimed,
    ClaimRequest,
    Clock,
    OutboxRow,
    Outcome,
    Page,
    Record,
    Renewal,
    Renewed,
    RunFilter,
)
from perdure.storage.contract.schedules import ScheduleStorage
from perdure.storage.contract.transactions import Transactions
from perdure.storage.contract.wakeups import HintTransport
from perdure.storage.contract.webhooks import WebhookStorage


class Storage(Questions, ScheduleStorage, WebhookStorage, Oversight, Protocol):
    """Where runs are kept. Every call may raise StorageUnavailable; nothing is half done then,
    and `commit` may be repeated as it is: its commit ids tell what had already been stored."""

    loop_bound: bool
    """Whether it may only be used on the loop that used it first."""

    local_clock: Clock | None
    """This machine's clock, if that is the one it reads; else its time is its own."""

    async def migrate(self) -> int:
        """Bring the schema up to date; the version it now has. Safe to call at any time."""
        ...

    async def check_schema(self) -> None:
        """Raises SchemaMismatch unless the database has the schema of this code."""
        ...

    def transactions(self) -> Transactions:
        """Where handlers get transactions from, in the same database."""
        ...

    async def was_stored(self, commit: Commit) -> bool:
        """Whether a commit whose answer was lost is stored. Waits for whoever is writing the
        run: after a no, it never will be."""
        ...

    def hint_transport(self) -> HintTransport | None:
        """How this storage tells other processes to look, if it can."""
        ...

    async def close(self) -> None: ...

    async def commit(
        self, batch: Sequence[Commit], *, telling: frozenset[str] = frozenset()
    ) -> list[Outcome]:
        """Store each item, all of it or nothing. They share a transaction, not a fate.

        An item is judged against the stored run in this order: sequence (SequenceConflict),
        environment, final sequence, lease token (InvariantViolation), lease expiry where it
        rests on one (SequenceConflict), guards of its effects (SequenceConflict), keys
        (Existing). Of two items with one key the first wins. An item stored before under the
        same commit id is Committed again, without effect.

        Others are told of the topics in `telling` as soon as it is stored, if its hints ride: that
        is sooner than whoever asked for it could tell them. One that was not stored may be told.
        """
        ...

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        """Store the outcomes, then hand over due runs: at most one a token.

        Only tasks the worker knows; nothing of paused queues; within a queue by rank, or from
        key to key if it is fair; between queues in turns; never more leases than a limit allows,
        nor more starts than a rate. Each run that is handed over takes a token of its rates,
        which does not come back if the run does. If the claim fails the outcomes still commit.
        If the answer is lost (StorageUnavailable), `leases` tells what was claimed.
        """
        ...

    async def reserve(self, request: ReserveRequest) -> Claimed:
        """Reserve due runs of a queue for a push, as a claim would choose them, each with an
        outbox row.

        A reserved run occupies its limits like a leased one, and took its tokens; it is claimed
        by name only, which takes neither again. Maintenance ends reservations nobody claimed.
        """
        ...

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        """Move the expiry of leases that still have their token; no event, no sequence."""
        ...

    async def leases(self, worker_id: str) -> list[Run]:
        """The runs a worker holds, by its id."""
        ...

    async def attention(self, limit: int) -> list[Run]:
        """Runs that maintenance must look at, longest due first: those whose lease has expired,
        and those that nobody holds and whose time has come. While there are leases, it writes
        something, too, and so raises StorageUnavailable where nothing can be written."""
        ...

    async def put_off(self, run_ids: Sequence[str]) -> None:
        """Leave these runs out of `attention` for an hour, or until they are written to."""
        ...

    async def open_gates(self, limit: int) -> int:
        """Let parked runs back into the queue where their limit has room; how many."""
        ...

    async def put_limits(self, limits: Sequence[Limit]) -> list[bool]:
        """Store each, unless another version came first; which were stored."""
        ...

    async def limits(self, environment: str) -> list[Limit]:
        """Everything said about limits, and who said it."""
        ...

    async def standing(self, environment: str, gates: Sequence[Gate]) -> Standing:
        """What holds at these gates at this moment: to tell, not to judge."""
        ...

    async def gates(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Which of these runs are parked, and behind what: a `Gate` as text, `reserved` for a
        push, or `unreadable` by this code."""
        ...

    async def get(self, run_ids: Sequence[str]) -> dict[str, Run]:
        """The runs among these that exist."""
        ...

    async def find(self, filter: RunFilter, *, limit: int, cursor: str | None = None) -> Page:
        """A page of runs, `limit` at most and fewer if they are large: only a page without a
        cursor is the last. Pages neither lose nor repeat a run while others are added."""
        ...

    async def events(self, run_id: str, *, after: int = 0) -> list[RecordedEvent]:
        """A run's history, exactly as it was handed in."""
        ...

    async def counts(self, environment: str) -> dict[tuple[str, Status], int]:
        """How many runs each queue has in each status."""
        ...

    async def backlog(self, environment: str) -> list[Backlog]:
        """What each queue has to do, at a cost that does not grow with the queues' length."""
        ...

    async def write_logs(self, batches: Sequence[LogBatch]) -> None:
        """Keep lines and progress of attempts; lines written before are kept once. What belongs
        to no run (any more) is dropped."""
        ...

    async def logs(
        self, run_id: str, *, after: str | None = None, limit: int = 1000
    ) -> list[LogLine]:
        """Lines of a run, attempt by attempt, as they were said; `after` a line's cursor."""
        ...

    async def progress(self, run_ids: Sequence[str]) -> dict[str, Progress]:
        """What was last said, by those that said something."""
        ...

    async def changes(self, cursor: str | None, *, limit: int) -> list[Change]:
        """Commits of all runs, in an order that never lets one be skipped. It may lag behind
        the oldest open write transaction."""
        ...

    async def outbox(self, *, limit: int) -> list[OutboxRow]: ...

    async def delivered(self, positions: Sequence[int]) -> None:
        """Forget outbox rows that were handed over."""
        ...

    async def put(self, records: Sequence[Record]) -> list[bool]:
        """Store each, unless another version came first; which were stored. Storage stamps
        `seen_at`."""
        ...

    async def records(self, environment: str, kind: str, name: str | None = None) -> list[Record]:
        """Return all records of a kind, or the one with this name."""
        ...

    async def forget(self, environment: str, kind: str, before: datetime) -> None:
        """Drop records that nobody has put since then."""
        ...

    async def prune(
        self, status: Status, before: datetime, limit: int, *, open_letters: bool = False
    ) -> int:
        """Delete at most `limit` runs that finished with `status` before `before`, with their
        histories. Return the count. For dead-lettered runs the closing of the dead letter counts;
        with `open_letters`, the opening of dead letters that are open. Keys stay, except those of
        occurrences that cannot be created again: schedules store up to when."""
        ...

    async def free_keys(self, run_id: str, freed: Sequence[KeyFreed]) -> None:
        """Free keys that this run still owns, before their time."""
        ...

    async def prune_keys(self, limit: int) -> int:
        """Forget keys that are free to be taken anyway; how many."""
        ...

    async def fold_histories(self, limit: int) -> int:
        """Store older events of at most `limit` long histories in less space, until none is long.
        Return how many histories those were. What `events` and `changes` return stays the same."""
        ...

    async def started_at(self) -> datetime | None:
        """When the database server was started, if it is one."""
        ...

    async def now(self) -> datetime:
        """The storage's clock."""
        ...
