"""Queues, limits, workers, dead letters, keys and the audit log over HTTP."""

from __future__ import annotations

from msgspec.structs import asdict

from perdure.core.effects import DeadLetter, DeadLetterStatus
from perdure.engine.catalogue import WorkerEntry
from perdure.engine.keys import ApiKey
from perdure.engine.limits import QueueState, TaskLimits
from perdure.errors import KeyNotFound
from perdure.web.problems import Refusal, RequestRefused
from perdure.web.route import Call
from perdure.web.runs import Triggered, retry_run
from perdure.web.views import AuditView, Items, KeyView, audit_view, key_view
from perdure.web.wishes import (
    AgainBody,
    AuditQuery,
    KeyBody,
    LetterQuery,
    LetterStatus,
    LimitBody,
    QueueBody,
    ReasonBody,
    RotateBody,
)

# Queues and limits


async def list_queues(call: Call) -> Items[QueueState]:
    return Items(list(call.at.view.shown(await call.app.queues.list())))


async def get_queue(call: Call) -> QueueState:
    return call.at.view.shown(await call.app.queues.get(call.path["queue"]))


async def set_queue(call: Call, body: QueueBody) -> QueueState:
    after = await call.app.queues.set(call.path["queue"], by=call.by, **asdict(body))
    return call.at.view.shown(after)


async def reset_queue(call: Call) -> QueueState:
    return call.at.view.shown(await call.app.queues.reset(call.path["queue"]))


async def pause_queue(call: Call, body: ReasonBody) -> QueueState:
    after = await call.app.queues.pause(call.path["queue"], body.reason, by=call.by)
    return call.at.view.shown(after)


async def resume_queue(call: Call, body: ReasonBody) -> QueueState:
    return call.at.view.shown(await call.app.queues.resume(call.path["queue"]))


async def list_limits(call: Call) -> Items[TaskLimits]:
    return Items(list(await call.app.limits.list()))


async def get_limit(call: Call) -> TaskLimits:
    return await call.app.limits.get(call.path["task"])


async def set_limit(call: Call, body: LimitBody) -> TaskLimits:
    return await call.app.limits.set(call.path["task"], by=call.by, **asdict(body))


async def reset_limit(call: Call) -> TaskLimits:
    return await call.app.limits.reset(call.path["task"])


# Workers


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
    return await retry_run(call, body)


async def discard_dead_letter(call: Call, body: ReasonBody) -> DeadLetter:
    await call.app.dead_letters.discard(call.run, body.reason, by=call.by)
    letter = await call.app.dead_letters.get(call.run)
    assert letter.status is DeadLetterStatus.DISCARDED
    return call.at.view.shown(letter)


# Keys, of the caller's environment only


async def list_keys(call: Call) -> Items[KeyView]:
    return Items([key_view(key) for key in await call.at.keys.list() if _is_ours(call, key)])


async def create_key(call: Call, body: KeyBody) -> KeyView:
    wider = set(body.scopes) - call.caller.scopes
    if wider:
        problem = f"a key cannot make one that may do more than it: {', '.join(sorted(wider))}"
        raise RequestRefused(Refusal.SCOPE_MISSING, problem)
    made = await call.at.keys.create(
        body.name, body.scopes, expires_in=body.expires_in or None, by=call.by
    )
    return await _told(call, made.key, made.text)


async def revoke_key(call: Call, body: ReasonBody) -> KeyView:
    return await _told(call, await call.at.keys.revoke((await _key(call)).id))


async def rotate_key(call: Call, body: RotateBody) -> KeyView:
    made = await call.at.keys.rotate((await _key(call)).id, body.overlap)
    return await _told(call, made.key, made.text)


async def _told(call: Call, key: ApiKey, text: str | None = None) -> KeyView:
    """This server knows of the change when it answers."""
    await call.api.keyring.refresh()
    return key_view(key, text)


async def _key(call: Call) -> ApiKey:
    wanted = call.path["key_id"]
    for key in await call.at.keys.list():
        if key.id == wanted and _is_ours(call, key):
            return key
    raise KeyNotFound(wanted)


def _is_ours(call: Call, key: ApiKey) -> bool:
    return key.environment == call.caller.environment


# The audit log


async def list_audit(call: Call, query: AuditQuery) -> Items[AuditView]:
    found = await call.at.audit_log.read(after=query.after, limit=query.limit)
    last = str(found[-1].position) if len(found) == query.limit else None
    return Items([audit_view(sealed) for sealed in found], last)
