"""`app.webhooks` through the API of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType

from perdure.core.filter_terms import parse_instant
from perdure.core.webhook import EVERYTHING
from perdure.engine.operators.filters import When, page_limit
from perdure.engine.rest.client import Items, RestClient, given_fields
from perdure.engine.rest.runs import encode_tag
from perdure.engine.runtime.input import OPERATOR, By, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents
from perdure.engine.runtime.secret import Secret
from perdure.engine.tasks.target import Text
from perdure.engine.webhooks.operators import Signing, Tag, Webhooks
from perdure.engine.webhooks.webhook import Delivery, Webhook
from perdure.errors import InvalidInput


@explain_methods
class RemoteWebhooks(Webhooks):
    """The key names the operator, so `by` is ignored."""

    def __init__(self, components: OpenComponents, rest: RestClient) -> None:
        self._components = components
        self._rest = rest

    async def list(self) -> Sequence[Webhook]:
        return await self._rest.get_all(Webhook, "webhooks")

    async def get(self, name: str) -> Webhook:
        return await self._rest.get(Webhook, "webhooks", text(name, "name"))

    async def deliveries(
        self, name: str, *, limit: int = 50, before: int | None = None
    ) -> Sequence[Delivery]:
        path = ("webhooks", text(name, "name"), "deliveries")
        return (
            await self._rest.get(Items[Delivery], *path, limit=page_limit(limit), cursor=before)
        ).items

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
        since: When | None = None,
        by: By = OPERATOR,
    ) -> Webhook:
        body: dict[str, Any] = {
            "name": name,
            "url": url,
            "signing_secrets": _secret_names(signing_secret),
            "events": events,
            "task": task,
            "queue": queue,
            "tag": None if tag is None else encode_tag(tag),
            "status": status,
            "headers": headers,
            "with_payload": with_payload,
            "since": self._start(since),
        }
        return await self._rest.send(Webhook, "POST", "webhooks", **body)

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
        by: By | UnsetType = OPERATOR,
    ) -> Webhook:
        body = given_fields(
            url=url,
            signing_secrets=UNSET if signing_secret is UNSET else _secret_names(signing_secret),
            events=events,
            task=task,
            queue=queue,
            tag=encode_tag(tag) if isinstance(tag, tuple) else tag,
            status=status,
            headers=headers,
            with_payload=with_payload,
        )
        return await self._rest.send(Webhook, "PATCH", "webhooks", text(name, "name"), **body)

    async def pause(self, name: str, *, by: By | UnsetType = OPERATOR) -> Webhook:
        return await self._send("POST", name, "pause")

    async def resume(self, name: str, *, by: By | UnsetType = OPERATOR) -> Webhook:
        return await self._send("POST", name, "resume")

    async def replay(
        self,
        name: str,
        *,
        since: When | None = None,
        after: str | None = None,
        by: By | UnsetType = OPERATOR,
    ) -> Webhook:
        start = self._start(since)
        return await self._send("POST", name, "replay", since=start, after=after)

    async def delete(self, name: str, *, by: By | UnsetType = OPERATOR) -> None:
        await self._send("DELETE", name)

    async def test(self, name: str, *, by: By | UnsetType = OPERATOR) -> Delivery:
        """Post an event `webhook.test` from the server, which has the secrets."""
        path = ("webhooks", text(name, "name"), "test")
        return await self._rest.send(Delivery, "POST", *path)

    def _start(self, since: When | None) -> datetime | None:
        return None if since is None else parse_instant(since, "since", self._components.now())

    async def _send(self, method: str, name: str, *action: str, **body: Any) -> Webhook:
        path = ("webhooks", text(name, "name"), *action)
        return await self._rest.send(Webhook, method, *path, **body)


def _secret_names(secrets: Signing) -> list[str]:
    """Raises InvalidInput."""
    chosen = [secrets] if isinstance(secrets, Secret) else list(secrets)
    if not all(isinstance(secret, Secret) for secret in chosen):
        problem = f"must be secrets, e.g. secret('WEBHOOK_BILLING'), not {secrets!r:.80}"
        raise InvalidInput("signing_secret", problem)
    if any(secret.prefix for secret in chosen):
        raise InvalidInput("signing_secret", "a secret that signs has no prefix")
    return [secret.name for secret in chosen]
