"""The storage contract, spelt once for every SQL database.

An adapter inherits from `SqlStorage` and says how to run an operation, reading or writing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from perdure.core.explain.health import Neglect, Vitals
from perdure.core.limits.admission import Gate, Standing
from perdure.core.limits.settings import Limit
from perdure.core.run.commit import Commit
from perdure.core.run.effects import KeyFreed
from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.schedule.definition import DefinedBy, Schedule, SkippedSpan
from perdure.core.schedule.transition import ScheduleStep
from perdure.errors import StorageError, StorageRefused
from perdure.storage.contract.explanation import SuspectScope
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
from perdure.storage.contract.schedules import DueSchedules, StepOutcome
from perdure.storage.contract.transactions import Transactions
from perdure.storage.contract.wakeups import HintTransport
from perdure.storage.sql.inspection import SqlOversight
from perdure.storage.sql.read import explain as explaining
from perdure.storage.sql.read import runs as reading
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation
from perdure.storage.sql.write import handler_commit, leases, limits, logs, schedules, settings
from perdure.storage.sql.write.claim import Claiming, Look, Overtaken, Reserving, Round, Wish
from perdure.storage.sql.write.claim import hand_over as claim_runs
from perdure.storage.sql.write.commit import commit_batch
from perdure.storage.sql.write.folding import SqlFolding
from perdure.storage.sql.write.webhooks import SqlWebhooks

T = TypeVar("T")
Make = Callable[[], Operation[T]]

LOOK_AT = (500, 1000, 2000)
"""How many runs a claim looks at, again and again, while full limits take its places."""


class AlreadyStored(StorageError):
    """A row that was to be new exists: an earlier try of the same commit went through."""


class SqlStorage(SqlFolding, SqlOversight, SqlWebhooks, ABC):
    """See `contract.storage.Storage` for what each method promises."""

    dialect: Dialect
    _limited: frozenset[str] = frozenset()
    """Environments that had limits when somebody last looked: only a guess, to save a look."""
    local_clock: Clock | None = None

    @abstractmethod
    async def _write(self, make: Make[T]) -> T:
        """Run an operation in a write transaction; again from the start if that was transient."""

    @abstractmethod
    async def _write_once(self, make: Make[T]) -> T:
        """The same, but never again once its COMMIT may have gone through."""

    async def _write_telling(self, topics: frozenset[str], make: Make[T]) -> T:
        """The same as `_write`; others are told, where hints ride."""
        return await self._write(make)

    async def _write_soon(self, make: Make[T]) -> T:
        """The same as `_write`, for what cannot wait long once the database is back."""
        return await self._write(make)

    async def _write_much(self, make: Make[T]) -> T:
        """The same as `_write`, for what may take its time: it deletes many rows."""
        return await self._write(make)

    @abstractmethod
    async def _read(self, make: Make[T]) -> T:
        """Run an operation that only reads."""

    async def _read_much(self, make: Make[T]) -> T:
        """The same as `_read`, for what may take its time: it looks through many rows."""
        return await self._read(make)

    @abstractmethod
    def transactions(self) -> Transactions: ...

    async def was_stored(self, commit: Commit) -> bool:
        return await self._write(lambda: handler_commit.find_commit(commit, self.dialect))

    async def commit(
        self, batch: Sequence[Commit], *, telling: frozenset[str] = frozenset()
    ) -> list[Outcome]:
        if not batch:
            return []
        write = partial(self._write_telling, telling)
        try:
            return await write(lambda: commit_batch(batch, self.dialect))
        except AlreadyStored:
            return await write(lambda: commit_batch(batch, self.dialect, settling=True))
        except StorageRefused as refusal:
            if len(batch) == 1:
                return [refusal]
            return [made for item in batch for made in await self.commit([item], telling=telling)]

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        first = await self._first_round(request, outcomes)
        if first.is_early and request.tokens:
            await self._wake_keys(request, len(request.tokens))
            eager = await self._round(Claiming(request), (), is_eager=True)
            kept = replace(eager.claimed, outcomes=first.claimed.outcomes)
            first = replace(eager, claimed=kept)
        return await self._look_again(
            first, len(request.tokens), lambda given: Claiming(_rest(request, given))
        )

    async def reserve(self, request: ReserveRequest) -> Claimed:
        await self._wake_keys(request, request.places)
        first = await self._round(Reserving(request), (), is_eager=True)
        wanted = request.places
        return await self._look_again(
            first, wanted, lambda given: Reserving(replace(request, places=wanted - given))
        )

    async def _look_again(self, first: Round, places: int, rest: Callable[[int], Wish]) -> Claimed:
        """Past what stands behind full limits, while there is more, a few times."""
        claimed, again = first.claimed, first.again
        for look_at in LOOK_AT:
            if not again or len(claimed.runs) == places:
                break
            following = await self._round(rest(len(claimed.runs)), (), look_at, is_eager=True)
            again = following.again
            claimed = replace(
                following.claimed,
                runs=claimed.runs + following.claimed.runs,
                outcomes=claimed.outcomes,
            )
        return claimed

    async def _first_round(self, request: ClaimRequest, outcomes: Sequence[Commit]) -> Round:
        try:
            return await self._round(Claiming(request), outcomes)
        except (AlreadyStored, StorageRefused):
            if not outcomes:
                raise
        # One of the outcomes cannot be stored. By themselves only the guilty one fails.
        settled = tuple(await self.commit(outcomes))
        alone = await self._round(Claiming(request), ())
        return replace(alone, claimed=replace(alone.claimed, outcomes=settled))

    async def _round(
        self, wish: Wish, outcomes: Sequence[Commit], at_least: int = 0, *, is_eager: bool = False
    ) -> Round:
        environment = frozenset([wish.request.environment])
        expected = environment <= self._limited
        look = Look(at_least=at_least, is_limited=expected, is_eager=is_eager)
        try:
            done = await self._write_once(lambda: claim_runs(wish, outcomes, look, self.dialect))
        except Overtaken:
            careful = replace(look, is_careful=True)
            done = await self._write_once(lambda: claim_runs(wish, outcomes, careful, self.dialect))
        if done.is_limited != expected:
            self._limited ^= environment
        return done

    async def _wake_keys(self, request: ClaimRequest | ReserveRequest, most: int) -> None:
        tasks = request.tasks
        await self._write(lambda: limits.wake_keys(request.environment, tasks, most, self.dialect))

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        return await self._write_soon(lambda: leases.renew_leases(renewals, self.dialect))

    async def leases(self, worker_id: str) -> list[Run]:
        return await self._read(lambda: reading.leases_of(worker_id, self.dialect))

    async def attention(self, limit: int) -> list[Run]:
        return await self._write(lambda: leases.due_for_attention(limit, self.dialect))

    async def put_off(self, run_ids: Sequence[str]) -> None:
        await self._write(lambda: leases.put_off(run_ids, self.dialect))

    async def open_gates(self, limit: int) -> int:
        opened = await self._open_gates(None, limit)
        let_in = opened.runs
        while (after := opened.after) is not None:
            opened = await self._open_gates(after, limit)
            let_in += opened.runs
        return let_in

    async def _open_gates(self, after: tuple[str, str] | None, limit: int) -> limits.GatesOpened:
        return await self._write(lambda: limits.open_gates(after, limit, self.dialect))

    async def put_limits(self, limits: Sequence[Limit]) -> list[bool]:
        return await self._write(lambda: settings.put_limits(limits))

    async def limits(self, environment: str) -> list[Limit]:
        return await self._read(lambda: settings.read_limits(environment))

    async def standing(self, environment: str, gates: Sequence[Gate]) -> Standing:
        return await self._read(lambda: limits.read_standing(environment, gates, self.dialect))

    async def gates(self, run_ids: Sequence[str]) -> dict[str, str]:
        return await self._read(lambda: limits.gates_of_runs(run_ids, self.dialect))

    async def holders(self, environment: str, gate: Gate, *, limit: int) -> list[str]:
        return await self._read_much(
            lambda: explaining.read_holders(environment, gate, limit, self.dialect)
        )

    async def suspects(self, scope: SuspectScope) -> list[str]:
        return await self._read(lambda: explaining.find_suspects(scope, self.dialect))

    async def parked(self, environment: str, gate: Gate, *, limit: int) -> int:
        return await self._read_much(lambda: explaining.count_parked(environment, gate, limit))

    async def vitals(self) -> Vitals:
        """Nothing, unless the adapter knows more."""
        return Vitals(database=type(self).__name__, bytes=0)

    async def neglect(self, environment: str, *, limit: int) -> Neglect:
        return await self._read_much(
            lambda: explaining.read_neglect(environment, limit, self.dialect)
        )

    async def parking(self, environment: str, *, limit: int) -> list[Gate]:
        return await self._read_much(lambda: explaining.find_gates(environment, limit))

    async def successors(self, environment: str, run_ids: Sequence[str]) -> dict[str, str]:
        return await self._read(
            lambda: explaining.find_successors(environment, run_ids, self.dialect)
        )

    async def ahead(self, run: Run, *, is_fair: bool, limit: int) -> int:
        return await self._read_much(
            lambda: explaining.count_ahead(run, is_fair, limit, self.dialect)
        )

    async def get(self, run_ids: Sequence[str]) -> dict[str, Run]:
        return await self._read(lambda: reading.get_runs(run_ids, self.dialect))

    async def ended(self, run_ids: Sequence[str]) -> dict[str, Run]:
        return await self._read(lambda: reading.get_ended(run_ids, self.dialect))

    async def find(self, filter: RunFilter, *, limit: int, cursor: str | None = None) -> Page:
        return await self._read_much(lambda: reading.find_runs(filter, limit, cursor, self.dialect))

    async def events(self, run_id: str, *, after: int = 0) -> list[RecordedEvent]:
        events: list[RecordedEvent] = []
        read = partial(reading.read_events, run_id, dialect=self.dialect)
        has_more = True
        while has_more:
            last = events[-1].sequence if events else 0
            page, has_more = await self._read(partial(read, last))
            events += page
        return [event for event in events if event.sequence > after]

    async def counts(self, environment: str) -> dict[tuple[str, Status], int]:
        return await self._read_much(lambda: reading.count_runs(environment, self.dialect))

    async def backlog(self, environment: str) -> list[Backlog]:
        return await self._read_much(lambda: logs.read_backlog(environment, self.dialect))

    async def write_logs(self, batches: Sequence[LogBatch]) -> None:
        await self._write(lambda: logs.write_logs(batches, self.dialect))

    async def logs(
        self, run_id: str, *, after: str | None = None, limit: int = 1000
    ) -> list[LogLine]:
        return await self._read(lambda: logs.read_logs(run_id, after, limit, self.dialect))

    async def progress(self, run_ids: Sequence[str]) -> dict[str, Progress]:
        return await self._read(lambda: logs.read_progress(run_ids, self.dialect))

    async def changes(self, cursor: str | None, *, limit: int) -> list[Change]:
        return await self._read_much(lambda: reading.read_changes(cursor, limit, self.dialect))

    async def outbox(self, *, limit: int) -> list[OutboxRow]:
        return await self._read(lambda: reading.read_outbox(limit))

    async def delivered(self, positions: Sequence[int]) -> None:
        await self._write(lambda: reading.delete_outbox(positions))

    async def put(self, records: Sequence[Record]) -> list[bool]:
        return await self._write(lambda: settings.put_records(records))

    async def records(self, environment: str, kind: str, name: str | None = None) -> list[Record]:
        return await self._read(lambda: settings.records(environment, kind, name, self.dialect))

    async def forget(self, environment: str, kind: str, before: datetime) -> None:
        await self._write_much(
            lambda: settings.forget_records(environment, kind, before, self.dialect)
        )

    async def free_keys(self, run_id: str, freed: Sequence[KeyFreed]) -> None:
        await self._write(lambda: settings.free_keys(run_id, freed, self.dialect))

    async def prune_keys(self, limit: int) -> int:
        pruned = await self._write_much(lambda: leases.prune_keys(limit))
        await self._write_much(lambda: limits.prune_buckets(limit))
        return pruned

    async def _reopen_unreadable(self) -> None:
        await self._write_much(leases.reopen_unreadable)

    async def prune(
        self, status: Status, before: datetime, limit: int, *, open_letters: bool = False
    ) -> int:
        return await self._write_much(
            lambda: leases.prune_runs(status, before, limit, open_letters, self.dialect)
        )

    async def put_schedules(self, steps: Sequence[ScheduleStep]) -> list[StepOutcome]:
        if not steps:
            return []
        try:
            return await self._write(lambda: schedules.put_schedules(steps, self.dialect))
        except StorageRefused as refusal:
            if len(steps) == 1:
                return [refusal]
            return [outcome for step in steps for outcome in await self.put_schedules([step])]

    async def due_schedules(
        self, environment: str, *, limit: int, passing: Sequence[str] = ()
    ) -> DueSchedules:
        return await self._read(
            lambda: schedules.due_schedules(environment, limit, passing, self.dialect)
        )

    async def get_schedules(self, environment: str, ids: Sequence[str]) -> dict[str, Schedule]:
        return await self._read(lambda: schedules.get_schedules(environment, ids, self.dialect))

    async def list_schedules(
        self,
        environment: str,
        *,
        limit: int,
        after: str = "",
        defined_by: DefinedBy | None = None,
        deleted: bool = True,
    ) -> list[Schedule]:
        page = (environment, after, limit, defined_by, deleted)
        return await self._read_much(lambda: schedules.list_schedules(*page, self.dialect))

    async def unended(
        self, environment: str, ids: Sequence[str], *, limit: int
    ) -> dict[str, list[Run]]:
        return await self._read(
            lambda: schedules.read_unended(environment, ids, limit, self.dialect)
        )

    async def occurrences(
        self, environment: str, schedule_id: str, first: datetime, last: datetime, *, limit: int
    ) -> list[Run]:
        within = (environment, schedule_id, first, last, limit)
        return await self._read_much(lambda: schedules.read_occurrences(*within, self.dialect))

    async def spans(
        self, environment: str, schedule_id: str, first: datetime, last: datetime, *, limit: int
    ) -> list[SkippedSpan]:
        within = (environment, schedule_id, first, last, limit)
        return await self._read_much(lambda: schedules.read_spans(*within, self.dialect))

    async def prune_spans(self, before: datetime, limit: int) -> int:
        return await self._write_much(lambda: schedules.prune_spans(before, limit, self.dialect))

    async def started_at(self) -> datetime | None:
        return await self._read(lambda: reading.server_started(self.dialect))

    def hint_transport(self) -> HintTransport | None:
        return None

    async def now(self) -> datetime:
        return await self._read(lambda: reading.read_time(self.dialect))


def _rest(request: ClaimRequest, claimed: int) -> ClaimRequest:
    """What is still wanted once so many runs were claimed."""
    start = max(request.start - claimed, 0)
    return replace(request, tokens=request.tokens[claimed:], start=start)
