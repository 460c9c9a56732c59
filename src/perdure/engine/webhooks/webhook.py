"""A webhook as it is kept, and as operators see it: without what only a sender needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import Instant
from perdure.core.run.run import Actor
from perdure.core.webhook import (
    Disabled,
    Gap,
    Interest,
    Progress,
    WebhookState,
    check_interest,
    check_progress,
    state_of,
)
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.runtime.secret import Secret
from perdure.engine.tasks.target import HttpTarget
from perdure.errors import InvalidInput
from perdure.storage.contract.storage import Storage
from perdure.storage.contract.webhooks import StoredDelivery, StoredWebhook
from perdure.telemetry.redactor import Redactor


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """All of a webhook: what is wanted where, and how far it has been told."""

    id: str
    environment: str
    name: str
    target: HttpTarget
    interest: Interest
    with_payload: bool
    created_at: Instant
    created_by: Actor
    progress: Progress
    enabled: bool = True
    version: int = 0

    @property
    def state(self) -> WebhookState:
        return state_of(self.progress, enabled=self.enabled)

    def is_due(self, now: datetime) -> bool:
        return self.enabled and self.progress.is_due(now)


class QuarantinedHook(msgspec.Struct, frozen=True, kw_only=True):
    """A stored webhook that this code cannot read; `why` tells why. Senders skip it."""

    id: str
    environment: str
    name: str
    why: str

    @property
    def error(self) -> InvalidInput:
        return InvalidInput(
            "webhook",
            f"{self.name!r:.80} cannot be read and is skipped ({self.why}); delete it and create "
            "it again, or update this code if newer code wrote it",
        )


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as operators see it. Secrets are names; of `url` the query is hidden, since it may
    be one. `cursor` is its place in the change feed; `why` tells of the last failure. Of a
    quarantined webhook only `name`, `environment`, `state` and `why` are known."""

    name: str
    environment: str
    state: WebhookState
    url: str = ""
    events: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    tag: str | None = None
    status: str | None = None
    headers: dict[str, str] = {}
    signing_secrets: tuple[str, ...] = ()
    with_payload: bool = False
    created_at: Instant | None = None
    created_by: Actor | None = None
    cursor: str = ""
    posts: int = 0
    delivered_at: Instant | None = None
    failures: int = 0
    failing_since: Instant | None = None
    next_try_at: Instant | None = None
    why: str | None = None
    disabled: Disabled | None = None
    gap: Gap | None = None


class DeliveryOutcome(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One post, and what came of it. `cursor` is that of the change it told of: a replay after it
    passes this message by."""

    number: int
    at: Instant
    outcome: DeliveryOutcome
    message_id: str
    event: str
    run_id: str | None
    sequence: int | None
    cursor: str | None
    status: int | None
    seconds: float
    error: str | None
    response: str | None


def quarantined_view(hook: QuarantinedHook, redactor: Redactor) -> Webhook:
    return Webhook(
        name=hook.name,
        environment=hook.environment,
        state=WebhookState.QUARANTINED,
        why=str(Showing(redactor).text(hook.error.problem)),
    )


def view_of(hook: Hook, redactor: Redactor) -> Webhook:
    hook = Showing(redactor).shown(hook)
    interest, progress = hook.interest, hook.progress
    return Webhook(
        name=hook.name,
        environment=hook.environment,
        state=hook.state,
        url=hook.target.url,
        events=interest.events,
        task=interest.task,
        queue=interest.queue,
        tag=None if interest.tag is None else "=".join(interest.tag),
        status=interest.status,
        headers=_headers(hook.target),
        signing_secrets=tuple(secret.name for secret in hook.target.signing_secrets),
        with_payload=hook.with_payload,
        created_at=hook.created_at,
        created_by=hook.created_by,
        cursor=progress.cursor,
        posts=progress.posts,
        delivered_at=progress.delivered_at,
        failures=progress.failures,
        failing_since=progress.failing_since,
        next_try_at=progress.next_try_at,
        why=progress.why,
        disabled=progress.disabled,
        gap=progress.gap,
    )


def _headers(target: HttpTarget) -> dict[str, str]:
    return {
        name: f"secret {value.name}" if isinstance(value, Secret) else value
        for name, value in target.headers.items()
    }


def stored(hook: Hook) -> StoredWebhook:
    """To replace the version it was made from."""
    return StoredWebhook(
        id=hook.id,
        environment=hook.environment,
        name=hook.name,
        version=hook.version + 1,
        body=msgspec.json.encode(replace(hook, version=0)).decode(),
    )


async def put_hook(storage: Storage, hook: Hook, posted: Sequence[Delivery] = ()) -> Hook | None:
    """Return the hook as it is now, or None if another writer was faster. Raise InvalidInput for
    one that could not be read again."""
    rows = [StoredDelivery(it.number, msgspec.json.encode(it).decode()) for it in posted]
    row = stored(hook)
    decode_hook(row)
    kept = await storage.put_webhook(row, rows)
    return replace(hook, version=hook.version + 1) if kept else None


async def read_hooks(
    storage: Storage, environment: str | None
) -> tuple[list[Hook], list[QuarantinedHook]]:
    """Return the webhooks, and those that this code cannot read."""
    readable: list[Hook] = []
    quarantined: list[QuarantinedHook] = []
    for row in await storage.webhooks(environment):
        try:
            readable.append(decode_hook(row))
        except InvalidInput as error:
            quarantined.append(
                QuarantinedHook(
                    id=row.id, environment=row.environment, name=row.name, why=error.problem
                )
            )
    return readable, quarantined


def decode_hook(row: StoredWebhook) -> Hook:
    """Return the webhook. Raise InvalidInput if it cannot be read, whatever the reason.

    Id, environment, name and version are those of the row, which storage compares.
    """
    try:
        hook = msgspec.json.decode(row.body, type=Hook)
        check_progress(hook.progress)
        check_interest(hook.interest)
    except Exception as error:  # a stored body may be anything; only this webhook is affected
        raise InvalidInput("body", str(error) or type(error).__name__) from error
    return replace(hook, id=row.id, environment=row.environment, name=row.name, version=row.version)


def delivery_of(found: StoredDelivery) -> Delivery:
    return msgspec.json.decode(found.body, type=Delivery)
