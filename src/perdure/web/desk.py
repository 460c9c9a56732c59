"""What a storage is asked from afar, carried out within one environment.

A key belongs to an environment: whatever lies elsewhere does not exist for it. Who does not work
is shown what the routes would show. Who does sees all, but no lease's token except masked, and
writes nothing into the catalogue that others would execute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.commit import Commit
from perdure.core.effects import DeadLetter, DeadLetterClosed, KeyFreed
from perdure.core.run import Run
from perdure.core.values import check_label
from perdure.engine.catalogue import (
    TASK,
    WORKER,
    TaskEntry,
    WorkerEntry,
    read_task,
    read_worker,
)
from perdure.engine.keys import Scope
from perdure.engine.reserved import refuse_reserved
from perdure.engine.showing import Showing
from perdure.engine.webhooks.hook import Hook
from perdure.errors import AccessRefused, InvalidInput, PerdureError
from perdure.storage.operations import Hello, Hints
from perdure.storage.protocol import (
    Change,
    Claimed,
    ClaimRequest,
    Outcome,
    Record,
    RecordedEvent,
    Renewal,
    Renewed,
)
from perdure.storage.run_log import LogBatch, LogLine, Progress
from perdure.storage.schedule_protocol import StepOutcome
from perdure.storage.webhook_protocol import StoredDelivery, StoredWebhook
from perdure.storage.wire import PROTOCOL, CountsTold, Proposal, StepProposal, counts_told, mask
from perdure.web.ears import of_environment
from perdure.web.projecting import Projected, Projecting
from perdure.web.route import Call


class Masking(Showing):
    """For workers: all of it, but for tokens, of which they recognise their own."""

    def __init__(self) -> None:
        self._fields = {"token": mask}


class Desk:
    """One call's. A method here is asked instead of the storage's own of that name."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._storage = call.app.storage
        self.environment = call.app.environment
        scopes = call.caller.scopes
        self._is_admin = Scope.ADMIN in scopes
        self._works = Scope.WORK in scopes
        self._showing: Showing = Masking() if self._works else call.at.view
        self.projecting = Projecting(self._storage, self.environment, call)

    def shown(self, answer: Any) -> Any:
        """What the caller may see of it."""
        return answer if self._works and self._is_admin else self._showing.shown(answer)

    # Besides the contract

    async def hello(self) -> Hello:
        scopes = tuple(sorted(self._call.caller.scopes))
        return Hello(protocol=PROTOCOL, environment=self.environment, scopes=scopes)

    async def hear(self, session: str, wait: float) -> Hints:
        name = (self._call.caller.id, self.environment, check_label(session, "session"))
        return Hints(await self._call.api.ears.hear(name, self._call.app, wait))

    async def notify(self, topics: frozenset[str]) -> None:
        self._call.app.hints.publish(of_environment(topics, self.environment))

    # Writing runs

    async def commit(self, batch: Sequence[Proposal]) -> list[Outcome]:
        projected = await self.projecting.commits(batch)
        return _merged(projected, await self._storage.commit(_good(projected)))

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Proposal]) -> Claimed:
        for task in request.tasks:
            refuse_reserved(task)  # what operators order is carried out here
        projected = await self.projecting.commits(outcomes)
        claimed = await self._storage.claim(request, _good(projected))
        return replace(claimed, outcomes=tuple(_merged(projected, claimed.outcomes)))

    async def was_stored(self, commit: Proposal) -> bool:
        [projected] = await self.projecting.commits([commit])
        return isinstance(projected, Commit) and await self._storage.was_stored(projected)

    async def put_schedules(self, steps: Sequence[StepProposal]) -> list[StepOutcome]:
        """One by one: what one step changes, the next is projected from."""
        outcomes: list[StepOutcome] = []
        for proposal in steps:
            self._check_environment([proposal.schedule, proposal.limit, *proposal.spans])
            refuse_reserved(proposal.schedule.definition.task)
            step = await self.projecting.step(proposal)
            outcomes += (
                [step]
                if isinstance(step, PerdureError)
                else await self._storage.put_schedules([step])
            )
        return outcomes

    async def renew(self, renewals: Sequence[Renewal]) -> Renewed:
        own = await self._own(renewal.run_id for renewal in renewals)
        answer = await self._storage.renew([it for it in renewals if it.run_id in own])
        strange = {renewal.run_id for renewal in renewals} - own.keys()
        return replace(answer, lost=answer.lost | strange)

    async def write_logs(self, batches: Sequence[LogBatch]) -> None:
        own = await self._own(batch.run_id for batch in batches)
        await self._storage.write_logs([batch for batch in batches if batch.run_id in own])

    async def free_keys(self, run_id: str, freed: Sequence[KeyFreed]) -> None:
        if await self._own([run_id]):
            await self._storage.free_keys(run_id, freed)

    async def close_dead_letter(self, closed: DeadLetterClosed) -> bool:
        own = await self._own([closed.run_id])
        return bool(own) and await self._storage.close_dead_letter(closed)

    # Reading runs

    async def get(self, run_ids: Sequence[str]) -> dict[str, Run]:
        return await self._own(run_ids)

    async def ended(self, run_ids: Sequence[str]) -> dict[str, Run]:
        found = await self._storage.ended(run_ids)
        return {run_id: run for run_id, run in found.items() if self._is_own(run)}

    async def leases(self, worker_id: str) -> list[Run]:
        return self._own_ones(await self._storage.leases(worker_id))

    async def attention(self, limit: int) -> list[Run]:
        """Of a page of all environments: the server's maintenance sees to the others."""
        return self._own_ones(await self._storage.attention(limit))

    async def events(self, run_id: str, after: int) -> list[RecordedEvent]:
        found = await self._storage.events(run_id, after=after)
        return [it for it in found if self._is_own(it.event)]

    async def changes(self, cursor: str | None, limit: int) -> list[Change]:
        """On and on, since an empty page would say that there is no more."""
        while page := await self._storage.changes(cursor, limit=limit):
            own = [change for change in page if self._is_own(change.events[0].event)]
            if own:
                return own
            cursor = page[-1].cursor
        return []

    async def logs(self, run_id: str, after: str | None, limit: int) -> list[LogLine]:
        found = await self._storage.logs(run_id, after=after, limit=limit)
        return found if await self._own([run_id]) else []

    async def progress(self, run_ids: Sequence[str]) -> dict[str, Progress]:
        return await self._storage.progress(list(await self._own(run_ids)))

    async def gates(self, run_ids: Sequence[str]) -> dict[str, str]:
        return await self._storage.gates(list(await self._own(run_ids)))

    async def ahead(self, run: Run, is_fair: bool, limit: int) -> int:
        """Of the run as it is stored, whatever it is said to be."""
        own = await self._own([run.id])
        if not own:
            return 0
        return await self._storage.ahead(own[run.id], is_fair=is_fair, limit=limit)

    async def dead_letter(self, run_id: str) -> DeadLetter | None:
        letter = await self._storage.dead_letter(run_id)
        return letter if letter is not None and self._is_own(letter) else None

    async def drift(self, run_ids: Sequence[str]) -> dict[str, list[str]]:
        return await self._storage.drift(list(await self._own(run_ids)))

    async def counts(self, environment: str) -> CountsTold:
        return counts_told(await self._storage.counts(environment))

    # The catalogue and the registry

    async def put(self, records: Sequence[Record]) -> list[bool]:
        for record in records:
            self._check_record(record)
        return await self._storage.put(records)

    async def records(self, environment: str, kind: str) -> list[Record]:
        self._check_kind(kind)
        found = await self._storage.records(environment, kind)
        return found if self._works else list(map(self._record_shown, found))

    def _record_shown(self, record: Record) -> Record:
        read: Any = read_task if record.kind == TASK else read_worker
        return replace(record, body=_text(self._showing.shown(read(record))))

    async def forget(self, environment: str, kind: str, before: datetime) -> None:
        self._check_kind(kind)
        await self._storage.forget(environment, kind, before)

    def _check_kind(self, kind: str) -> None:
        if kind not in (TASK, WORKER):
            raise AccessRefused(f"records of kind {kind!r:.80} are none of a worker's business")

    def _check_record(self, record: Record) -> None:
        """A task that is a command or an address would be executed by others."""
        self._check_kind(record.kind)
        kind: Any = TaskEntry if record.kind == TASK else WorkerEntry
        try:
            entry = msgspec.json.decode(record.body, type=kind)
        except (msgspec.MsgspecError, PerdureError) as error:
            raise InvalidInput("body", f"is no {record.kind}: {error}") from error
        refuse_reserved(record.name)
        if isinstance(entry, TaskEntry) and entry.target is not None and not self._is_admin:
            problem = f"task {entry.name!r} has a target that others would execute"
            raise AccessRefused(f"{problem}; that needs the scope admin, which the key has not")

    # Webhooks

    async def put_webhook(
        self, webhook: StoredWebhook, posted: Sequence[StoredDelivery], keep: int
    ) -> bool:
        if webhook.version > 1 and not await self._has_webhook(webhook.id):
            return False
        return await self._storage.put_webhook(webhook, posted, keep=keep)

    async def webhooks(self, environment: str) -> list[StoredWebhook]:
        found = await self._storage.webhooks(environment)
        return found if self._works else [self._hook_shown(it) for it in found]

    def _hook_shown(self, found: StoredWebhook) -> StoredWebhook:
        hook = msgspec.json.decode(found.body, type=Hook)
        return replace(found, body=_text(self._showing.shown(hook)))

    async def delete_webhook(self, webhook_id: str) -> bool:
        own = await self._has_webhook(webhook_id)
        return own and await self._storage.delete_webhook(webhook_id)

    async def deliveries(
        self, webhook_id: str, limit: int, before: int | None
    ) -> list[StoredDelivery]:
        if not await self._has_webhook(webhook_id):
            return []
        return await self._storage.deliveries(webhook_id, limit=limit, before=before)

    async def _has_webhook(self, webhook_id: str) -> bool:
        return any(it.id == webhook_id for it in await self._storage.webhooks(self.environment))

    # Whose

    def check(self, arguments: Iterable[Any]) -> None:
        """Raises InvalidInput for what names another environment."""
        for argument in arguments:
            self._check_environment(argument if isinstance(argument, list) else [argument])

    def _check_environment(self, values: Iterable[Any]) -> None:
        for value in values:
            owner = value.key if isinstance(value, KeyFreed) else value
            if not isinstance(owner, Proposal):  # judged one by one, in the order of the contract
                self.check_name(getattr(owner, "environment", self.environment))

    def check_name(self, environment: str) -> None:
        if environment != self.environment:
            problem = f"this key is for {self.environment!r}, not {environment!r:.80}"
            raise InvalidInput("environment", problem)

    def _is_own(self, value: Any) -> bool:
        return bool(value.environment == self.environment)

    async def _own(self, run_ids: Iterable[str]) -> dict[str, Run]:
        found = await self._storage.get(list(run_ids))
        return {run_id: run for run_id, run in found.items() if self._is_own(run)}

    def _own_ones(self, runs: Iterable[Run]) -> list[Run]:
        return [run for run in runs if self._is_own(run)]


def _text(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()


def _good(projected: Sequence[Projected]) -> list[Commit]:
    return [it for it in projected if isinstance(it, Commit)]


def _merged(projected: Sequence[Projected], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What became of each, in the order in which they were proposed."""
    stored = iter(outcomes)
    return [it if isinstance(it, PerdureError) else next(stored) for it in projected]
