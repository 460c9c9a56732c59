"""Webhooks over HTTP. Secrets go by their names; nobody sends or is sent a value."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import asdict

from perdure.core.webhook import EVERYTHING
from perdure.engine.runtime.secret import Secret
from perdure.engine.tasks.target import MOST_HEADERS
from perdure.engine.webhooks.operators import MOST_SECRETS
from perdure.engine.webhooks.webhook import Delivery, Webhook
from perdure.web.models.requests import Asked, Limit, NameQuery, Reason, ReasonBody, Tag, When
from perdure.web.models.views import Items
from perdure.web.offload import page_by_name
from perdure.web.operations.operation import Call

MAX_EVENTS = 100

Events = Annotated[
    tuple[str, ...],
    Meta(min_length=1, max_length=MAX_EVENTS, description="Types of events, or `run.*`."),
]
Secrets = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=MOST_SECRETS,
        description="Names of the sender's variables, e.g. WEBHOOK_BILLING. Each one signs.",
    ),
]
Headers = Annotated[
    dict[str, str | Secret],
    Meta(
        max_length=MOST_HEADERS,
        description='Texts, or secrets by reference: `{"secret": "WEBHOOK_AUTH"}`.',
    ),
]


class WebhookBody(Asked, frozen=True, kw_only=True):
    """Which events of which runs to post where."""

    name: str
    url: str
    signing_secrets: Secrets
    events: Events = (EVERYTHING,)
    task: str | None = None
    queue: str | None = None
    tag: Tag | None = None
    status: str | None = None
    headers: Headers = field(default_factory=dict)
    with_payload: bool = False
    since: When | None = None


class WebhookChangeBody(Asked, frozen=True, kw_only=True):
    """What is not given stays; a filter that is null does not matter any more."""

    url: str | UnsetType = UNSET
    signing_secrets: Secrets | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    task: str | UnsetType | None = UNSET
    queue: str | UnsetType | None = UNSET
    tag: Tag | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    headers: Headers | UnsetType = UNSET
    with_payload: bool | UnsetType = UNSET


class ReplayBody(Asked, frozen=True, kw_only=True):
    """From an instant on, or after a cursor."""

    since: When | None = None
    after: str | None = None
    reason: Reason | None = None


class DeliveryQuery(Asked, frozen=True, kw_only=True):
    limit: Limit = 50
    cursor: Annotated[int, Meta(ge=1, lt=2**53, description="Goes on before it.")] | None = None


async def list_webhooks(call: Call, query: NameQuery) -> Items[Webhook]:
    found = await call.app.webhooks.list()
    page, cursor = page_by_name(found, lambda hook: hook.name, query.limit, query.cursor)
    return Items(list(page), cursor)


async def get_webhook(call: Call) -> Webhook:
    return await call.app.webhooks.get(call.path["webhook"])


async def create_webhook(call: Call, body: WebhookBody) -> Webhook:
    return await call.app.webhooks.create(by=call.by, **_arguments(asdict(body)))


async def change_webhook(call: Call, body: WebhookChangeBody) -> Webhook:
    return await call.app.webhooks.update(
        call.path["webhook"], by=UNSET, **_arguments(asdict(body))
    )


async def delete_webhook(call: Call) -> Webhook:
    last = await call.app.webhooks.get(call.path["webhook"])
    await call.app.webhooks.delete(last.name, by=UNSET)
    return last


async def pause_webhook(call: Call, body: ReasonBody) -> Webhook:
    return await call.app.webhooks.pause(call.path["webhook"], by=UNSET)


async def resume_webhook(call: Call, body: ReasonBody) -> Webhook:
    return await call.app.webhooks.resume(call.path["webhook"], by=UNSET)


async def replay_webhook(call: Call, body: ReplayBody) -> Webhook:
    name = call.path["webhook"]
    return await call.app.webhooks.replay(name, since=body.since, after=body.after, by=UNSET)


async def test_webhook(call: Call, body: ReasonBody) -> Delivery:
    return await call.app.webhooks.test(call.path["webhook"], by=UNSET)


async def list_deliveries(call: Call, query: DeliveryQuery) -> Items[Delivery]:
    found = await call.app.webhooks.deliveries(
        call.path["webhook"], limit=query.limit, before=query.cursor
    )
    more = str(found[-1].number) if len(found) == query.limit else None
    return Items(list(found), more)


def _arguments(fields: dict[str, Any]) -> dict[str, Any]:
    """As `app.webhooks` takes them."""
    names, tag = fields.pop("signing_secrets"), fields["tag"]
    if isinstance(tag, str):
        key, _, value = tag.partition("=")
        fields["tag"] = (key, value)
    secrets = names if names is UNSET else [Secret(name) for name in names]
    return fields | {"signing_secret": secrets}
