"""Webhooks and manifests from afar; and runs of tasks that the server's catalogue knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from perdure.core.webhook import EVERYTHING
from perdure.engine.bulk import OF_LETTERS, Order, Report
from perdure.engine.door import OPERATOR, By
from perdure.engine.executors.secret import Secret
from perdure.engine.executors.target import Text
from perdure.engine.handle import RunHandle
from perdure.engine.manifests.applying import Application, Manifests
from perdure.engine.manifests.manifest import Manifest
from perdure.engine.options import TriggerOptions
from perdure.engine.orders.giving import Giving, given
from perdure.engine.webhooks.hook import Delivery, Webhook
from perdure.engine.webhooks.keeping import Signing, Tag, Webhooks
from perdure.errors import InvalidInput
from perdure.storage.orders import OrderTransport

if TYPE_CHECKING:
    from perdure.engine.app import App

_WORKERS_WORDS = ("retry", "parent_id", "root_id", "continuation_of")
"""Options that no trigger at the API's door has."""


class RemoteWebhooks(Webhooks):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def create(
        self,
        name: str,
        url: str,
        *,
        signing_secret: Signing,
        events: Sequence[str] = (EVERYTHING,),
        task: str | None = None,
        queue: str | None = None,
        tag: Tag | None = None,
        status: str | None = None,
        headers: Mapping[str, Text] | None = None,
        with_payload: bool = False,
        since: datetime | None = None,
        by: By = OPERATOR,
    ) -> Webhook:
        wanted: dict[str, Any] = {
            "name": name,
            "url": url,
            "signing_secrets": _names(signing_secret),
            "events": events,
            "task": task,
            "queue": queue,
            "tag": _tag(tag),
            "status": status,
            "headers": headers,
            "with_payload": with_payload,
            "since": since,
        }
        return await self._giving.order(Webhook, "POST", "webhooks", **wanted)

    async def update(
        self,
        name: str,
        *,
        url: str | UnsetType = UNSET,
        signing_secret: Signing | UnsetType = UNSET,
        events: Sequence[str] | UnsetType = UNSET,
        task: str | UnsetType | None = UNSET,
        queue: str | UnsetType | None = UNSET,
        tag: Tag | UnsetType | None = UNSET,
        status: str | UnsetType | None = UNSET,
        headers: Mapping[str, Text] | UnsetType = UNSET,
        with_payload: bool | UnsetType = UNSET,
    ) -> Webhook:
        wanted = given(
            url=url,
            signing_secrets=UNSET if signing_secret is UNSET else _names(signing_secret),
            events=events,
            task=task,
            queue=queue,
            tag=UNSET if tag is UNSET else _tag(tag),
            status=status,
            headers=headers,
            with_payload=with_payload,
        )
        return await self._giving.order(Webhook, "PATCH", "webhooks", name, **wanted)

    async def pause(self, name: str) -> Webhook:
        return await self._giving.order(Webhook, "POST", "webhooks", name, "pause")

    async def resume(self, name: str) -> Webhook:
        return await self._giving.order(Webhook, "POST", "webhooks", name, "resume")

    async def replay(
        self, name: str, *, since: datetime | None = None, after: str | None = None
    ) -> Webhook:
        place: dict[str, Any] = {"since": since, "after": after}
        return await self._giving.order(Webhook, "POST", "webhooks", name, "replay", **place)

    async def delete(self, name: str) -> None:
        await self._giving.order(Webhook, "DELETE", "webhooks", name)

    async def test(self, name: str) -> Delivery:
        """Posted by the server, which has the secrets."""
        return await self._giving.order(Delivery, "POST", "webhooks", name, "test")


class RemoteManifests(Manifests):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def apply(
        self, manifest: Manifest, *, by: By = OPERATOR, dry_run: bool = False, prune: bool = False
    ) -> Application:
        files = [{"name": name, "text": text} for name, text in manifest.texts]
        return await self._giving.order(
            Application, "POST", "schedules:apply", files=files, dry_run=dry_run, prune=prune
        )


async def trigger_there(
    app: App,
    transport: OrderTransport,
    task: str,
    payload: Mapping[str, Any],
    options: TriggerOptions,
) -> RunHandle[Any]:
    """The server knows the task, and checks the payload. Raises TaskNotFound and InvalidInput."""
    asked = {name: value for name, value in msgspec.structs.asdict(options).items() if value}
    for name in _WORKERS_WORDS:
        if name in asked:
            raise InvalidInput(name, "is for code that has the task; leave it out")
    return await Giving(app, transport).make("runs", task=task, payload=dict(payload), **asked)


async def order_many(
    app: App, transport: OrderTransport, order: Order, expect: int
) -> RunHandle[Report]:
    """The run that sees to all that fit, of which there may be so many by now."""
    words: dict[str, Any] = {**order.words}
    if words.get("tag") is not None:
        words["tag"] = _tag(words["tag"])
    what = "dead-letters:bulk" if order.action in OF_LETTERS else "runs:bulk"
    asked: dict[str, Any] = {"action": order.action, "filter": words, "reason": order.reason}
    made = await Giving(app, transport).order(Bulk, "POST", what, **asked, expect=expect)
    return RunHandle(app, made.run_id, None, created=True)


class Bulk(msgspec.Struct, frozen=True):
    run_id: str


def _names(secrets: Signing) -> list[str]:
    """Raises InvalidInput."""
    chosen = [secrets] if isinstance(secrets, Secret) else list(secrets)
    if any(secret.prefix for secret in chosen):
        raise InvalidInput("signing_secret", "a secret that signs has no prefix")
    return [secret.name for secret in chosen]


def _tag(tag: Tag | None) -> str | None:
    return None if tag is None else "=".join(tag)
