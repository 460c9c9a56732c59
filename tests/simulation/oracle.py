"""Watches the database from above: after every write that changed something, everything that
must hold is checked for the runs it touched."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from perdure.core.invariants import (
    CommittedStep,
    check_history,
    check_run,
    check_step,
    differences,
)
from perdure.core.run.codec import decode_events
from perdure.core.run.commit import Commit
from perdure.core.run.effects import _FREES_IDEMPOTENCY
from perdure.core.run.events import (
    Event,
    RunCancellationRequested,
    RunCreated,
    RunLeaseClaimed,
    RunStarted,
)
from perdure.core.run.reducer import project
from perdure.core.run.run import ActorType, Run
from perdure.errors import PerdureError, SequenceConflict
from simulation.database import Database, HistoryRow, RunRow, finish
from simulation.flow import FlowWatch
from simulation.ledger import Ledger
from simulation.loop import EPOCH, Process
from simulation.notes import Notes
from simulation.schedules import ScheduleWatch
from simulation.sightings import sighted
from simulation.transactions import effect_problems

MICROSECOND = timedelta(microseconds=1)


class Oracle:
    """Knows every run from its history alone, and compares."""

    def __init__(self, database: Database, ledger: Ledger, notes: Notes) -> None:
        self._database = database
        self._ledger = ledger
        self._notes = notes
        self._position = 0
        self._rows: dict[str, RunRow] = {}
        self._fences: dict[str, int] = {}
        self._tokens: set[str] = set()
        self._versions: dict[str, int] = {}
        self._keys: dict[tuple[str, str, str], str] = {}
        self._commit_ids: set[str] = set()
        self._lost_answers: set[str] = set()
        self._freed: set[str] = set()
        self._outlived: set[str] = set()
        self.flow = FlowWatch(notes)
        self.schedules = ScheduleWatch(database, notes)
        self.runs: dict[str, Run] = {}
        self.pruned: set[str] = set()
        self.workers: dict[str, Process] = {}

    @property
    def now(self) -> datetime:
        return self._database.clock.now()

    # After a write

    def look(self, writer: Process) -> None:
        before, rows = self._rows, self._database.rows()
        found = self._database.history_after(self._position)
        try:
            for row in found:
                self._position = row.position
                self._take(row, before.get(row.run_id))
        except PerdureError as error:
            self._notes.fail(f"a history that cannot be: {error}")
        touched = {row.run_id for row in found}
        self._compare([run_id for run_id in self.runs if run_id in touched], rows)
        self._check_leases(before, rows)
        self._check_effects(touched)
        limits = self._database.limits()
        self.flow.look(before, rows, limits, _instant(self.now) or 0)
        self.schedules.look()
        slots = {
            name: row.max_leases for (scope, name), row in limits.items() if scope == "schedule"
        }
        self.schedules.check_slots((self.runs[run_id] for run_id in rows), slots)
        self._rows = rows

    def _take(self, row: HistoryRow, before_row: RunRow | None) -> None:
        events = decode_events(row.events)
        before = self.runs.get(row.run_id)
        expected = 0 if before is None else before.sequence
        if row.first_sequence != expected + 1:
            self._fail(row.run_id, f"{row.first_sequence} follows {expected} in its history")
            return
        if before is not None and before.lease is not None and before_row is not None:
            before = _as_stored(before, before_row)
        after = project(before, events, expected)
        self._notes.say("history", f"{row.run_id[-6:]} {_summary(events, after)}")
        self._commit_ids.add(row.commit_id)
        self.runs[row.run_id] = after
        if before is None:
            self._check_keys(after)
            self.schedules.created(after, self.now)
        else:
            self._check(before, events, after)
            self.schedules.superseded(before, after)

    def _check(self, before: Run, events: Sequence[Event], after: Run) -> None:
        step = CommittedStep(before=before, events=events, after=after, now=self.now)
        problems = check_step(step) + self._check_claim(before, events, after)
        problems += self._ledger.judge(step, self._holder(before))
        for problem in problems:
            self._fail(after.id, problem)
        for name in sighted(step):
            self._notes.sometimes(name)

    def _check_claim(self, before: Run, events: Sequence[Event], after: Run) -> list[str]:
        problems = []
        for event in events:
            match event:
                case RunLeaseClaimed(token=token):
                    if token in self._tokens or after.counters.claims <= self._fences.get(
                        after.id, 0
                    ):
                        problems.append("a token was used twice, or the fence did not grow")
                    if before.claimable_at is None or before.claimable_at > self.now:
                        problems.append("it was claimed before it was due")
                    self._tokens.add(token)
                    self._fences[after.id] = after.counters.claims
                case RunStarted(attempt=attempt, task_version=version) if after.lease is not None:
                    self._ledger.started(after.id, attempt, after.lease)
                    problems += self._check_version(after, version or 0)
                case RunCancellationRequested():
                    self._ledger.asked[after.id] = self._ledger.time()
        return problems

    def _check_version(self, run: Run, version: int) -> list[str]:
        """Compare with the newest version that created the run or began an attempt of it."""
        newest = self._versions.get(run.id, run.task_version or 0)
        self._versions[run.id] = max(newest, version)
        return [f"version {version} executes it after version {newest}"] if version < newest else []

    def _check_keys(self, run: Run) -> None:
        """At most one run owns a key."""
        for kind, name in (
            ("idempotency", run.idempotency_key),
            ("singleton", run.singleton_key),
        ):
            if name is None:
                continue
            owner = self.runs.get(self._keys.get((kind, run.task, name), ""))
            self._keys[kind, run.task, name] = run.id
            if owner is not None and not self._is_free(kind, owner):
                self._fail(run.id, f"{kind} key {name!r} still belongs to {owner.id}")

    def _is_free(self, kind: str, owner: Run) -> bool:
        if kind == "singleton" or owner.status in _FREES_IDEMPOTENCY:
            return owner.is_terminal
        return owner.is_terminal and owner.created_at + owner.policy.idempotency_ttl <= self.now

    def _compare(self, touched: Sequence[str], rows: dict[str, RunRow]) -> None:
        """What is stored is what the history adds up to, and the queries will find it."""
        stored = finish(self._database.storage.get(touched))
        for run_id in touched:
            run, row, expected = stored.get(run_id), rows.get(run_id), self.runs[run_id]
            if run is None or row is None:
                self._fail(run_id, "it is not stored any more")
                continue
            problems = check_run(run)
            problems += [
                f"{name} is not as its history says" for name in differences(run, expected)
            ]
            if row.claimable_at != _instant(run.claimable_at):
                problems.append("its claimable_at column is wrong")
            if bool(row.holds_slot) is not expected.holds_schedule_slot:
                problems.append("its column for the schedule's slot is wrong")
            due = None if run.lease is not None else _instant(run.attention_at)
            if due is not None and (row.attention_at is None or row.attention_at > due):
                problems.append("maintenance will look too late")
            for problem in problems:
                self._fail(run_id, problem)

    def _check_leases(self, before: dict[str, RunRow], rows: dict[str, RunRow]) -> None:
        now = _instant(self.now) or 0
        for run_id, old in before.items():
            row = rows.get(run_id)
            if row is None:
                self._check_pruned(run_id)
                continue
            if old.gate is not None and row.gate is None and row.sequence == old.sequence:
                self._freed.add(run_id)
            elif old.lease_token is None and row.lease_token is not None and run_id in self._freed:
                self._notes.sometimes("parked and freed")
            if row.lease_token is None or row.lease_token != old.lease_token:
                continue
            if (row.lease_expires_at or 0) < (old.lease_expires_at or 0):
                self._fail(run_id, "a renewal shortened its lease")
            if (row.lease_expires_at or 0) > (old.lease_expires_at or 0):
                self._notes.sometimes("lease renewed")
                if (old.lease_expires_at or 0) <= now:
                    self._notes.sometimes("expired lease renewed")
                if row.lease_token in self._outlived:
                    self._notes.sometimes("outage survived with a lease")

    def _check_pruned(self, run_id: str) -> None:
        run = self.runs[run_id]
        self.pruned.add(run_id)
        if run.is_terminal:
            self._notes.sometimes("pruned")
        else:
            self._fail(run_id, f"it was pruned while {run.status}")

    def _check_effects(self, touched: Collection[str]) -> None:
        """What handlers wrote in their transactions is there if and only if they succeeded."""
        runs = {run_id: run for run_id, run in self.runs.items() if run_id in touched}
        effects = [effect for effect in self._database.effects() if effect[0] in touched]
        for run_id, problem in effect_problems(runs, effects):
            self._fail(run_id, problem)
        if effects:
            self._notes.sometimes("effect and success together")

    # What storage answered

    def answer_lost(self, batch: Sequence[Commit]) -> None:
        self._lost_answers |= {item.commit_id for item in batch} & self._commit_ids

    def claim_lost(self, tokens: Sequence[str]) -> None:
        self._ledger.unanswered |= set(tokens)  # also those that may still land

    def settled(self, item: Commit) -> None:
        """Storage said Committed."""
        if item.commit_id not in self._commit_ids:
            self._fail(item.run.id, "storage said that it stored what it did not")
        if item.commit_id in self._lost_answers:
            self._notes.sometimes("ambiguous commit settled")

    def refused(self, item: Commit, conflict: SequenceConflict) -> None:
        actor = item.events[0].actor
        current = self.runs.get(item.run.id)
        if item.needs_expiry and conflict.because is not None:
            self._notes.sometimes("recovery lost to a renewal")
        if actor.type is not ActorType.WORKER or current is None:
            return
        token = None if current.lease is None else current.lease.token
        if token != item.lease_token:
            self._notes.sometimes("zombie outcome refused")
        else:
            self._notes.sometimes("outcome overtaken by a cancellation")

    def check_parked(self) -> None:
        """Nothing goes wrong any more: nobody may wait behind an open gate for long."""
        self.flow.check_parked(self._rows, _instant(self.now) or 0)

    @property
    def any_leased(self) -> bool:
        return any(row.lease_token is not None for row in self._rows.values())

    @property
    def any_expired(self) -> bool:
        return any(self._expired())

    def remember_expired(self) -> None:
        """An outage is over: these leases ran out during it, and nobody may take them."""
        self._outlived |= set(self._expired())

    def _expired(self) -> Iterator[str]:
        now = _instant(self.now) or 0
        for row in self._rows.values():
            if row.lease_token is not None and (row.lease_expires_at or 0) <= now:
                yield row.lease_token

    # At the end

    def check_everything(self) -> None:
        rows = self._database.rows()
        runs = finish(self._database.storage.get(list(self.runs)))
        letters = self._database.open_letters()
        self._check_effects(set(self.runs))
        self.schedules.check()
        for run_id, expected in self.runs.items():
            run = runs.get(run_id)
            if run is None or run_id not in rows:
                if run_id not in self.pruned:
                    self._fail(run_id, "it is lost")
                continue
            recorded = finish(self._database.storage.events(run_id))
            problems = check_run(run) + check_history(run, [r.event for r in recorded])
            if run.sequence != expected.sequence:
                problems.append("its sequence is not what was seen")
            if run_id in letters and run.status != "dead_lettered":
                problems.append("it has a dead letter without being dead")
            for problem in problems:
                self._fail(run_id, problem)

    def _holder(self, run: Run) -> Process | None:
        return None if run.lease is None else self.workers.get(run.lease.worker_id)

    def _fail(self, run_id: str, problem: str) -> None:
        self._notes.fail(f"run {run_id}: {problem}")


def _as_stored(run: Run, row: RunRow) -> Run:
    """With the renewals that left no event."""
    assert run.lease is not None
    if row.lease_expires_at is None or row.lease_token != run.lease.token:
        return run
    expires_at = EPOCH.fromtimestamp(0, EPOCH.tzinfo) + row.lease_expires_at * MICROSECOND
    return replace(run, lease=run.lease.renewed_until(expires_at))


def _instant(at: datetime | None) -> int | None:
    return None if at is None else (at - EPOCH.fromtimestamp(0, EPOCH.tzinfo)) // MICROSECOND


def _summary(events: Sequence[Event], after: Run) -> str:
    names = " ".join(event.type.value.removeprefix("run.") for event in events)
    created = f" {after.task}" if isinstance(events[0], RunCreated) else ""
    return f"{names}{created} by {events[0].actor.type.value} -> {after.status} #{after.sequence}"
