"""Queues, limits, workers, dead letters and the audit log over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from perdure.core.audit_chain import SealedEntry
from perdure.core.run.effects import DeadLetter, DeadLetterStatus
from perdure.engine.operators.audit_pages import AuditView, read_page
from perdure.engine.operators.limits import QueueState, TaskLimits
from perdure.engine.tasks.catalogue import WorkerEntry
from perdure.web.models.requests import (
    AgainBody,
    AuditQuery,
    LetterQuery,
    LetterStatus,
    LimitBody,
    NameQuery,
    PauseQueueBody,
    QueueBody,
    ReasonBody,
    RetryBody,
    SealedAuditQuery,
)
from perdure.web.models.views import Items, RunSummary
from perdure.web.offload import page_by_name
from perdure.web.operations.operation import Call
from perdure.web.operations.runs import Triggered, retry_run

# Queues and limits


async def list_queues(call: Call, query: NameQuery) -> Items[QueueState]:
    found = await call.app.queues.list()
    page, cursor = page_by_name(found, lambda queue: queue.name, query.limit, query.cursor)
    return Items(await call.offload_each(call.at.view.shown, page), cursor)


async def get_queue(call: Call) -> QueueState:
    return call.at.view.shown(await call.app.queues.get(call.path["queue"]))


async def set_queue(call: Call, body: QueueBody) -> QueueState:
    settings = body.settings | {"create": body.create is True}
    after = await call.app.queues.set(call.path["queue"], by=call.by, **settings)
    return call.at.view.shown(after)


async def reset_queue(call: Call) -> QueueState:
    return call.at.view.shown(await call.app.queues.reset(call.path["queue"], by=UNSET))


async def pause_queue(call: Call, body: PauseQueueBody) -> QueueState:
    name, reason = call.path["queue"], body.reason
    after = await call.app.queues.pause(name, reason, by=call.by, create=body.create is True)
    return call.at.view.shown(after)


async def resume_queue(call: Call, body: ReasonBody) -> QueueState:
    return call.at.view.shown(await call.app.queues.resume(call.path["queue"], by=UNSET))


async def list_limits(call: Call, query: NameQuery) -> Items[TaskLimits]:
    found = await call.app.limits.list()
    page, cursor = page_by_name(found, lambda limits: limits.task, query.limit, query.cursor)
    return Items(list(page), cursor)


async def get_limit(call: Call) -> TaskLimits:
    return await call.app.limits.get(call.path["task"])


async def set_limit(call: Call, body: LimitBody) -> TaskLimits:
    return await call.app.limits.set(call.path["task"], by=call.by, **body.settings)


async def reset_limit(call: Call) -> TaskLimits:
    return await call.app.limits.reset(call.path["task"], by=UNSET)


# Workers


async def list_worker_leases(call: Call) -> Items[RunSummary]:
    held = await call.app.workers.leases(call.path["worker"])
    return Items([call.at.view.summary(run) for run in held])


async def drain_worker(call: Call, body: ReasonBody) -> WorkerEntry:
    asked = await call.app.workers.drain(call.path["worker"], body.reason, by=call.by)
    return call.at.view.shown(asked)


# Dead letters


async def list_dead_letters(call: Call, query: LetterQuery) -> Items[DeadLetter]:
    page = await call.app.dead_letters.page(
        status=None if query.status is LetterStatus.ALL else query.status,
        limit=query.limit,
        cursor=query.cursor,
        **query.words,
    )
    return Items(await call.offload_each(call.at.view.shown, page.letters), page.cursor)


async def get_dead_letter(call: Call) -> DeadLetter:
    return call.at.view.shown(await call.app.dead_letters.get(call.run))


async def replay_dead_letter(call: Call, body: AgainBody) -> Triggered:
    return await retry_run(call, RetryBody(reason=body.reason, payload=body.payload))


async def discard_dead_letter(call: Call, body: ReasonBody) -> DeadLetter:
    await call.app.dead_letters.discard(call.run, body.reason, by=call.by)
    letter = await call.app.dead_letters.get(call.run)
    assert letter.status is DeadLetterStatus.DISCARDED
    return call.at.view.shown(letter)


# The audit log


async def list_audit(call: Call, query: AuditQuery) -> Items[AuditView]:
    page = await read_page(call.at.audit_log, query.filter, query.limit, query.cursor)
    return Items(list(page.entries), page.cursor)


async def list_sealed_audit(call: Call, query: SealedAuditQuery) -> Items[SealedEntry]:
    found = await call.at.audit_log.read(after=query.after, limit=query.limit)
    return Items(list(found), _cursor_after(found, query))


def _cursor_after(found: Sequence[SealedEntry], query: SealedAuditQuery) -> str | None:
    return str(found[-1].position) if len(found) == query.limit else None
