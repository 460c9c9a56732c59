"""The bank of seeded bugs: small mutations of the protocol, each of which somebody might write.

They prove the simulator, not the engine: whoever cannot find these finds nothing. Patched by
name, so a bug whose place is gone breaks its test instead of silently finding nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from perdure.core.decide import decide_shutdown, decide_start, lease, recovery
from perdure.core.decide import ending as endings
from perdure.core.decide.ending import GaveBack, HandedOver, Raised, Returned, Stopped
from perdure.core.limits import admission as limits
from perdure.core.limits.admission import Admission
from perdure.core.limits.fairness import take_turns
from perdure.core.limits.settings import NO_WISHES, declare
from perdure.core.run import commit as core_commit
from perdure.core.run import effects, reducer
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.failure import CRASH
from perdure.core.run.reducer import project
from perdure.core.run.run import SYSTEM, Run
from perdure.engine.attempt import ending as outcome
from perdure.engine.attempt.exits import Released
from perdure.engine.attempt.transaction import HandlerTransaction
from perdure.engine.client.results import Results
from perdure.engine.client.trigger import CommitBatcher
from perdure.engine.execution import call as calls
from perdure.engine.execution import handler
from perdure.engine.execution import loop_call as loop_calls
from perdure.engine.maintenance.lease_recovery import Patience
from perdure.engine.maintenance.tick_record import TickRecord
from perdure.engine.operators import declared_limits
from perdure.engine.worker import lost_claims as doubt
from perdure.engine.worker.leases import Leases
from perdure.engine.worker.lost_claims import Doubt
from perdure.engine.worker.outcomes import Recorder
from perdure.engine.worker.work_scope import WorkScope
from perdure.engine.worker.worker import Worker
from perdure.errors import LeaseLost, StorageUnavailable
from perdure.storage.contract.runs import Committed
from perdure.storage.sql.read.runs import runs_of
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Step, last_trip
from perdure.storage.sql.storage import SqlStorage
from perdure.storage.sql.write import claim as claiming
from perdure.storage.sql.write import commit as committing
from perdure.storage.sql.write import leases as upkeep
from perdure.storage.sql.write import limits as gating
from perdure.storage.sql.write import turns
from perdure.storage.sqlite import connection
from perdure.storage.sqlite.steady_clock import SteadyClock
from simulation import faults

Patch = Callable[[Any, str, Any], None]
"""`monkeypatch.setattr`: object, name, new value."""


class Bug(msgspec.Struct, frozen=True):
    name: str
    apply: Callable[[Patch], None]


BANK: list[Bug] = []


def bug(name: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def keep(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BANK.append(Bug(name, apply))
        return apply

    return keep


def _in_query(patch: Patch, query: str, old: str, new: str) -> None:
    text = connection.QUERIES[query].text
    assert old in text, f"{query} has changed: {old!r} is not in it"
    mutated = replace(connection.QUERIES[query], text=text.replace(old, new))
    patch(connection, "QUERIES", connection.QUERIES | {query: mutated})


# Fencing


@bug("an outcome is written whoever holds the lease now")
def _(patch: Patch) -> None:
    patch(lease, "_owned", lambda run, token: run.lease or _raise(LeaseLost(run.id)))
    patch(Leases, "check", lambda self, run_id, token: None)
    patch(Leases, "_act_on", lambda self, answer, asked: None)


@bug("a stale commit is not refused")
def _(patch: Patch) -> None:
    judge = committing._judge

    def lenient(item: Commit, found: Any, *, repeated: bool) -> Any:
        stored = found.runs.get(item.run.id)
        if stored is not None and stored.sequence != item.expected_sequence:
            return None
        return judge(item, found, repeated=repeated)

    patch(committing, "_judge", lenient)
    for name in ("update_runs", "start_runs", "end_runs"):
        _in_query(patch, name, "runs.sequence = new.expected", "TRUE")


@bug("a conflict is taken for success")
def _(patch: Patch) -> None:
    judge = committing._judge

    def deaf(item: Commit, found: Any, *, repeated: bool) -> Any:
        stored = found.runs.get(item.run.id)
        if stored is not None and stored.sequence != item.expected_sequence:
            return Committed(item.run.id, item.run.sequence)
        return judge(item, found, repeated=repeated)

    patch(committing, "_judge", deaf)


@bug("a worker uses the same tokens again")
def _(patch: Patch) -> None:
    make = WorkScope.make_claim

    def claim(self: WorkScope, worker_id: str, places: int, suspect: str | None) -> Any:
        made = make(self, worker_id, places, suspect)
        tokens = tuple(f"{worker_id} {index}" for index in range(places))
        return replace(made, tokens=tokens)

    patch(WorkScope, "make_claim", claim)


# Leases


@bug("recovery does not look at the stored expiry")
def _(patch: Patch) -> None:
    patch(core_commit, "rests_on_expiry", lambda run, events: False)


@bug("a commit undoes a renewal")
def _(patch: Patch) -> None:
    text = connection.QUERIES["update_runs"].text
    case = text[text.index("CASE WHEN") : text.index("END,") + 3]
    _in_query(patch, "update_runs", case, "new.lease_expires_at")


@bug("renewals come too late")
def _(patch: Patch) -> None:
    patch(Leases, "_interval", lambda self, runs: self._components.defaults.lease_ttl * 1.1)


@bug("the worker's own clock decides whether it still has a lease")
def _(patch: Patch) -> None:
    renew = Leases.renew

    async def renew_what_looks_alive(self: Leases) -> None:
        now = self._components.clock.now()
        for token, run in list(self.held.items()):
            if run.lease is not None and run.lease.expires_at < now:
                self.drop(token)
        await renew(self)

    patch(Leases, "renew", renew_what_looks_alive)


@bug("a cancellation is not heard")
def _(patch: Patch) -> None:
    act = Leases._act_on

    def deaf(self: Leases, answer: Any, asked: Any) -> None:
        act(self, replace(answer, cancelling=frozenset()), asked)

    patch(Leases, "_act_on", deaf)


@bug("leases are told apart by their run alone")
def _(patch: Patch) -> None:
    def hold(self: Leases, runs: Iterable[Run]) -> None:
        self.held |= {run.lease.token: run for run in runs if run.lease is not None}

    def drop(self: Leases, token: str) -> None:
        dropped = self.held.pop(token, None)
        for other, run in list(self.held.items()):
            if dropped is not None and run.id == dropped.id:
                self.held.pop(other)

    patch(Leases, "hold", hold)
    patch(Leases, "drop", drop)


@bug("recovery does not wait after an outage")
def _(patch: Patch) -> None:
    patch(Patience, "may_take", lambda self, run, now, server_started: True)


@bug("reads count as writes for the grace of recovery")
def _(patch: Patch) -> None:
    def look_only(limit: int, dialect: Dialect) -> Operation[list[Run]]:
        [found] = yield last_trip(Step("due_for_attention", {"limit": limit}))
        return runs_of(found, dialect)

    async def record_nothing(self: TickRecord, now: datetime) -> None: ...

    patch(upkeep, "due_for_attention", look_only)
    patch(TickRecord, "record", record_nothing)  # it writes, too


@bug("what the database has interrupted counts as a failure")
def _(patch: Patch) -> None:
    patch(endings, "decide_interruption", lease.decide_failure)


@bug("an interrupted transaction is taken for the handler's failure")
def _(patch: Patch) -> None:
    patch(HandlerTransaction, "_interrupted", lambda self, error: outcome.ending_of(error))


@bug("a connection that died in the pool costs the handler its attempt")
def _(patch: Patch) -> None:
    async def begin(self: HandlerTransaction) -> Any:
        self._use()
        limit = self._terms.limit(self._run)
        self._transaction = await self._terms.transactions.begin(limit)
        self.is_open = True
        return self.connection

    patch(HandlerTransaction, "__aenter__", begin)


@bug("a call on a silent connection has no deadline")
def _(patch: Patch) -> None:
    patch(faults, "ANSWER_TIMEOUT_S", None)


@bug("the database's time goes back with the machine's")
def _(patch: Patch) -> None:
    patch(SteadyClock, "now", lambda self: self._clock.now())


# Claiming


@bug("a handler is begun before its start is durable")
def _(patch: Patch) -> None:
    claim = SqlStorage.claim

    async def claim_only(self: Any, request: Any, outcomes: Sequence[Commit] = ()) -> Any:
        claimed = await claim(self, replace(request, start=0), outcomes)
        runs = tuple(
            project(run, decide_start(run, run.lease.token, run.updated_at), run.sequence)
            for run in claimed.runs
            if run.lease is not None
        )
        return replace(claimed, runs=runs)

    patch(SqlStorage, "claim", claim_only)


@bug("an older version claims what a newer one has created")
def _(patch: Patch) -> None:
    patch(Run, "required_version", property(lambda run: run.executed_version or 0))


@bug("an older version claims what a newer one has begun")
def _(patch: Patch) -> None:
    patch(reducer, "_executed_version", lambda run: run.executed_version)


@bug("limits are not looked at")
def _(patch: Patch) -> None:
    def admit_all(wish: Any, found: Any, dialect: Any) -> Any:
        yield from ()
        return Admission(found.runs), None

    patch(claiming, "_admit", admit_all)


@bug("who holds a limit is not counted")
def _(patch: Patch) -> None:
    standing = gating._standing
    patch(gating, "_standing", lambda *found: replace(standing(*found), holders={}))


@bug("gates stay shut")
def _(patch: Patch) -> None:
    async def none(self: Any, limit: int) -> int:
        return 0

    patch(committing, "_opened", lambda items: [])
    patch(SqlStorage, "open_gates", none)


@bug("rates are not looked at")
def _(patch: Patch) -> None:
    patch(limits._Room, "_is_dry", lambda self, gate, pace: False)


@bug("a start takes no token")
def _(patch: Patch) -> None:
    patch(claiming, "token_writes", lambda *arguments: ())


@bug("a bucket is filled by whoever sets its limit again")
def _(patch: Patch) -> None:
    text = connection.QUERIES["put_limit"].text
    case = text[text.index("CASE WHEN excluded.rate_interval") : text.index("END,") + 3]
    _in_query(patch, "put_limit", case, "NULL")


@bug("a paused queue is served")
def _(patch: Patch) -> None:
    rules = gating._rules

    def heedless(found: Any) -> Any:
        return {place: replace(rule, is_paused=False) for place, rule in rules(found).items()}

    patch(gating, "_rules", heedless)
    _in_query(patch, "limited_candidates", "rooms.paused = 1", "rooms.paused = 2")


@bug("a fair queue begins at its first key again and again")
def _(patch: Patch) -> None:
    patch(claiming, "turn_writes", lambda *arguments: Many("set_turns", []))


@bug("the key with the longest backlog goes first")
def _(patch: Patch) -> None:
    def greedy(*arguments: Any) -> Any:
        taken = take_turns(*arguments)
        return replace(taken, lanes=tuple((lane, 0) for lane, _ in taken.lanes))

    patch(turns, "take_turns", greedy)


@bug("reservations do not count")
def _(patch: Patch) -> None:
    for query in ("count_holders", "limited_candidates", "read_rooms"):
        _in_query(patch, query, "gate = 'reserved'", "gate = 'reserved' AND 1 = 0")


@bug("a reservation nobody claims lasts for ever")
def _(patch: Patch) -> None:
    patch(recovery, "_decide_redelivery", lambda run, now: [])


@bug("code overrules operators")
def _(patch: Patch) -> None:
    def overbearing(limit: Any, *arguments: Any) -> Any:
        return declare(replace(limit, operator=NO_WISHES), *arguments)

    patch(declared_limits, "declare", overbearing)


@bug("a claim in doubt gives back whatever is not held yet")
def _(patch: Patch) -> None:
    async def settle(self: Doubt) -> None:
        self._added.clear()
        storage: Any = cast(Any, self._backend).storage
        for run in await storage.leases(self._worker_id) if self._since else ():
            if run.lease is not None and run.lease.token not in HELD[self._worker_id].held:
                events = decide_shutdown(run, run.lease.token, self._time.now())
                commit = prepare_commit(run, events, self._components.ids.commit_id())
                await storage.commit([commit])
        self._since.clear()
        self._unsettled.clear()
        self._on_settled()

    HELD: dict[str, Leases] = {}
    make = Worker.__init__

    def remember(self: Worker, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        HELD[self.id] = self._leases

    patch(Worker, "__init__", remember)
    patch(Doubt, "run_once", settle)


@bug("a lost claim is forgotten as soon as nothing is found of it")
def _(patch: Patch) -> None:
    patch(doubt, "LONGEST_CLAIM", timedelta(0))


@bug("a failed claim keeps its places")
def _(patch: Patch) -> None:
    record = Worker._record_and_claim

    async def leak(self: Worker, finished: Any, places: int, suspect: Any) -> Any:
        try:
            return await record(self, finished, places, suspect)
        except StorageUnavailable:
            self._free -= places
            raise

    patch(Worker, "_record_and_claim", leak)


# Outcomes


@bug("an outcome is dropped when storage does not answer")
def _(patch: Patch) -> None:
    patch(Recorder, "put_back", lambda self, finished: None)


@bug("every run that a dead worker held is blamed")
def _(patch: Patch) -> None:
    def blame(run: Run, now: datetime, jitter: float) -> Any:
        return lease.failed(run, SYSTEM, now, CRASH, jitter, None, lease.NO_EVIDENCE)

    patch(recovery, "_after_death", blame)


@bug("a failure is retried without being recorded as one")
def _(patch: Patch) -> None:
    _endings(patch, lambda ending: GaveBack(timedelta(1)) if isinstance(ending, Raised) else ending)


@bug("a release counts as a failure")
def _(patch: Patch) -> None:
    ending_of = outcome.ending_of

    def failing(error: BaseException) -> Any:
        return ending_of(ValueError("released") if isinstance(error, Released) else error)

    for module in (outcome, calls, handler, loop_calls):
        if hasattr(module, "ending_of"):
            patch(module, "ending_of", failing)


@bug("shutdown hands over what has already ended")
def _(patch: Patch) -> None:
    turn = Worker._turn

    async def hand_over(self: Worker) -> bool:
        if self._is_stopping:
            for item in self._recorder.finished:
                item.ending = HandedOver()
        return await turn(self)

    patch(Worker, "_turn", hand_over)


@bug("the budget is not counted")
def _(patch: Patch) -> None:
    failed = lease.failed

    def for_ever(run: Any, *arguments: Any) -> Any:
        return failed(replace(run, counters=replace(run.counters, failures=0)), *arguments)

    patch(lease, "failed", for_ever)


# Transactions


@bug("a handler that was stopped commits its transaction all the same")
def _(patch: Patch) -> None:
    conclude = HandlerTransaction._conclude

    async def eager(self: HandlerTransaction, ending: Any) -> Any:
        stopped = isinstance(ending, Stopped)
        return await conclude(self, Returned(msgspec.Raw(b"null")) if stopped else ending)

    patch(HandlerTransaction, "_conclude", eager)


@bug("a success is recorded apart from its effects")
def _(patch: Patch) -> None:
    async def apart(self: HandlerTransaction, ending: Any) -> Any:
        await self._transaction.rollback()
        return ending

    patch(HandlerTransaction, "_conclude", apart)


# Triggers


@bug("an idempotency key is free as soon as its run has ended")
def _(patch: Patch) -> None:
    patch(effects, "_free_at", lambda run, kind: run.created_at)


@bug("a key is taken from its owner")
def _(patch: Patch) -> None:
    _in_query(patch, "take_keys", "WHERE keys.free_at <= now()", "")


@bug("a trigger is acknowledged when storage does not answer")
def _(patch: Patch) -> None:
    commit_all = CommitBatcher.commit_all

    async def hopeful(self: CommitBatcher, parts: Iterable[Sequence[Commit]]) -> Any:
        parts = list(parts)
        commits = [commit for part in parts for commit in part]
        return [
            Committed(commit.run.id, commit.run.sequence)
            if isinstance(outcome, StorageUnavailable)
            else outcome
            for commit, outcome in zip(commits, await commit_all(self, parts), strict=True)
        ]

    patch(CommitBatcher, "commit_all", hopeful)


@bug("a waiter who came meanwhile is judged by an older read")
def _(patch: Patch) -> None:
    settle = Results._settle
    patch(Results, "_settle", lambda self, asked, found: settle(self, list(self._waiters), found))


def _endings(patch: Patch, change: Callable[[Any], Any]) -> None:
    on_reports = Worker._on_reports

    def mutated(self: Worker, reports: Sequence[Any]) -> None:
        changed = [
            replace(report, ending=change(report.ending)) if hasattr(report, "ending") else report
            for report in reports
        ]
        on_reports(self, changed)

    patch(Worker, "_on_reports", mutated)


def _raise(error: Exception) -> Any:
    raise error
