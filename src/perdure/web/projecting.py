"""From what a worker proposes to what is stored: projected here, from the stored run.

Nothing that a worker says about what its events lead to is believed, or even sent. What it says
about the lease is compared with the stored one; whether it may say what its events say, with its
scopes. All else is judged by the storage itself, when it writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide import NewRun, decide_create
from perdure.core.events import Event, RunCreated, RunSucceeded
from perdure.core.lifecycle import EventType
from perdure.core.run import Actor, ActorType, Run, Source
from perdure.core.schedule.step import ScheduleStep
from perdure.core.values import check_text, decode_value
from perdure.engine.catalogue import TaskEntry, check_payload, known_tasks
from perdure.engine.keys import Scope
from perdure.engine.reserved import refuse_reserved
from perdure.errors import (
    AccessRefused,
    InvalidInput,
    InvariantViolation,
    PerdureError,
    ScheduleConflict,
    SequenceConflict,
    TaskNotFound,
)
from perdure.storage.protocol import Storage
from perdure.storage.wire import Proposal, StepProposal
from perdure.web.route import Call
from perdure.web.runs import client

Projected = Commit | PerdureError

_FIRST = frozenset({EventType.CREATED, EventType.DELIVERY_REQUESTED})
_TRIGGERS = frozenset({ActorType.CLIENT, ActorType.WORKER})
_WISHES = tuple(name for name in NewRun.__struct_fields__ if name != "ttl")


class Projecting:
    """For one caller. `used_admin` tells whether anything it proposed needed that."""

    def __init__(self, storage: Storage, environment: str, call: Call) -> None:
        self._storage = storage
        self._environment = environment
        self._scopes = call.caller.scopes
        self._defaults = call.app.defaults
        self._client = client(call)
        self._tasks: dict[str, TaskEntry] = {}
        self.used_admin = False

    async def commits(self, proposals: Sequence[Proposal]) -> list[Projected]:
        """Each as a commit, or as what is wrong with it."""
        known = [it.run_id for it in proposals if it.expected_sequence != 0]
        found = await self._storage.get(known) if known else {}
        if len(known) < len(proposals) and not self._works:
            entries = await known_tasks(self._storage, self._environment)
            self._tasks = {entry.name: entry for entry in entries}
        return [self._projected(it, found.get(it.run_id)) for it in proposals]

    @property
    def _works(self) -> bool:
        return Scope.WORK in self._scopes

    async def step(self, proposal: StepProposal) -> ScheduleStep | PerdureError:
        commits = []
        for projected in await self.commits(proposal.commits):
            if isinstance(projected, PerdureError):
                return ScheduleConflict(proposal.schedule.id, str(projected))
            commits.append(projected)
        return ScheduleStep(
            schedule=proposal.schedule,
            expected=proposal.expected,
            commits=tuple(commits),
            spans=proposal.spans,
            limit=proposal.limit,
        )

    def _projected(self, proposal: Proposal, stored: Run | None) -> Projected:
        try:
            if proposal.expected_sequence == 0:
                return self._creation(proposal)
            return self._advance(proposal, stored)
        except PerdureError as error:
            return error
        except (ArithmeticError, ValueError) as error:  # instants that lead out of the calendar
            return InvariantViolation(proposal.run_id, f"it cannot be projected: {error}")

    def _creation(self, proposal: Proposal) -> Commit:
        _check_consistency(proposal)
        if proposal.environment != self._environment:
            problem = f"this key is for {self._environment!r}, not {proposal.environment!r:.80}"
            raise InvalidInput("environment", problem)
        if not self._works:
            proposal = self._signed(proposal)
        commit = self._prepared(proposal, None)
        self._check_creator(proposal)
        if not self._works:
            self._check_wish(proposal.events[0])
        return commit

    def _signed(self, proposal: Proposal) -> Proposal:
        """Who only triggers does so by its own name."""
        events = tuple(replace(event, actor=self._client) for event in proposal.events)
        return replace(proposal, events=events)

    def _check_wish(self, created: Event) -> None:
        """The same as at `POST /v1/runs`."""
        assert isinstance(created, RunCreated)
        lineage = (created.parent_id, created.root_id, created.continuation_of)
        if lineage != (None, None, None) or created.source != Source():
            raise AccessRefused("what a run descends from is a worker's word: it needs work")
        if created.task not in self._tasks:
            raise TaskNotFound(created.task)
        arguments = decode_value(created.payload_json)
        if not isinstance(arguments, dict):
            raise InvalidInput("payload", f"must be an object of arguments, not {arguments!r:.80}")
        check_payload(created.task, self._tasks[created.task].payload_schema or {}, arguments)

    def _check_values(self, event: Event) -> None:
        """What our own code checks before it makes such an event: here somebody else made it."""
        if isinstance(event, RunSucceeded) and event.result_json is not UNSET:
            limit = self._defaults.result_limit
            check_text(bytes(event.result_json), field="result", limit=limit)
        if isinstance(event, RunCreated):
            refuse_reserved(event.task)
            limit = self._defaults.payload_limit
            check_text(bytes(event.payload_json), limit=limit)
            wish = NewRun(**{name: getattr(event, name) for name in _WISHES})
            decide_create(wish, event.run_id, event.actor, event.occurred_at)

    def _check_creator(self, proposal: Proposal) -> None:
        """Occurrences, reruns of dead letters and what operators make need more than a trigger."""
        first = proposal.events[0]
        assert isinstance(first, RunCreated)
        kinds = {event.type for event in proposal.events}
        actors = {event.actor.type for event in proposal.events}
        is_plain = kinds <= _FIRST and actors <= _TRIGGERS and first.occurrence_key is None
        if is_plain and not (proposal.is_pushed or proposal.dead_letter_closed):
            self._need(Scope.TRIGGER, proposal)
        else:
            self._need(Scope.ADMIN, proposal)

    def _advance(self, proposal: Proposal, stored: Run | None) -> Commit:
        expected = proposal.expected_sequence
        if expected < 0:
            raise InvariantViolation(proposal.run_id, f"{expected} is not a sequence")
        if stored is None or stored.environment != self._environment:
            raise SequenceConflict(proposal.run_id, expected, None)
        if stored.sequence > expected:
            return _stale(proposal, stored)
        if stored.sequence != expected:
            raise SequenceConflict(proposal.run_id, expected, stored.sequence)
        _check_consistency(proposal)
        token = None if stored.lease is None else stored.lease.token
        if token != proposal.lease_token:
            problem = "its lease has another token than the commit was made for"
            raise InvariantViolation(proposal.run_id, problem)
        self._need(Scope.WORK, proposal)
        if not _is_holders(proposal, stored):
            self._need(Scope.ADMIN, proposal)
        return self._prepared(proposal, stored)

    def _prepared(self, proposal: Proposal, stored: Run | None) -> Commit:
        for event in proposal.events:
            self._check_values(event)
        first = proposal.events[0] if proposal.events else None
        queue = first.queue if isinstance(first, RunCreated) else stored and stored.queue
        commit = prepare_commit(
            stored,
            proposal.events,
            proposal.commit_id,
            pushed_queues=(queue,) if proposal.is_pushed and queue else (),
            dead_letter_closed=proposal.dead_letter_closed,
        )
        _ = commit.run.claim_rank  # may lie before the beginning of time
        return commit

    def _need(self, scope: Scope, proposal: Proposal) -> None:
        self.used_admin = self.used_admin or scope is Scope.ADMIN
        if scope not in self._scopes:
            what = " and ".join(event.type for event in proposal.events) or "this"
            raise AccessRefused(f"{what} needs the scope {scope}, which the key has not")


def _check_consistency(proposal: Proposal) -> None:
    """Whoever contradicts themselves may have got more wrong than that."""
    place = (proposal.run_id, proposal.environment)
    if any((event.run_id, event.environment) != place for event in proposal.events):
        problem = "its commit holds events of another run or environment"
        raise InvariantViolation(proposal.run_id, problem)
    last = proposal.expected_sequence + len(proposal.events)
    if proposal.sequence != last:
        problem = f"its events end at {last}, its projection at {proposal.sequence}"
        raise InvariantViolation(proposal.run_id, problem)


def _is_holders(proposal: Proposal, stored: Run) -> bool:
    """Whether it is all the word of whoever holds the lease."""
    if stored.lease is None or proposal.is_pushed or proposal.dead_letter_closed is not None:
        return False
    holder = Actor(ActorType.WORKER, stored.lease.worker_id)
    return all(event.actor == holder for event in proposal.events)


def _stale(proposal: Proposal, stored: Run) -> Commit:
    """The run has moved on: it is a conflict, or was stored before, as its commit id will tell.
    Runs never go back, so this is never written; it only names what is asked about."""
    after = replace(stored, sequence=proposal.expected_sequence + len(proposal.events))
    return Commit(
        commit_id=proposal.commit_id,
        expected_sequence=proposal.expected_sequence,
        events=proposal.events,
        run=after,
        lease_token=proposal.lease_token,
    )
