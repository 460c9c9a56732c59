"""What storage remembers of webhooks: their definition and place in the feed, as one text each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec


class StoredWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is kept; `body` is JSON text. To change one, put it with the next version;
    a new one has version 1."""

    id: str
    environment: str
    name: str
    version: int
    body: str


class StoredDelivery(msgspec.Struct, frozen=True):
    """One post of a webhook, by its number; `body` is JSON text."""

    number: int
    body: str


class WebhookStorage(Protocol):
    """A webhook's place in the feed moves by compare-and-set, so none is skipped by two senders."""

    async def put_webhook(
        self, webhook: StoredWebhook, posted: Sequence[StoredDelivery] = (), *, keep: int = 100
    ) -> bool:
        """Store it with what was posted, and keep only the latest posts; false, and nothing of
        it, if another version came first, its name is taken, or it was deleted.

        Raise InvalidInput for a body that a sender could not process: not JSON, an instant without
        a zone, a number out of range, a cursor of no feed, too large.
        """
        ...

    async def webhooks(self, environment: str | None) -> list[StoredWebhook]:
        """By name; without an environment, those of all."""
        ...

    async def delete_webhook(self, webhook_id: str) -> bool:
        """Forget it and its posts; false if there was none."""
        ...

    async def deliveries(
        self, webhook_id: str, *, limit: int, before: int | None = None
    ) -> list[StoredDelivery]:
        """Posts that are kept, newest first."""
        ...

    async def pruned_to(self) -> str | None:
        """The last change of the feed that pruning took away, as a cursor."""
        ...

    async def cursor_before(self, instant: datetime) -> str:
        """A cursor of the change feed after which the first change of that instant or later comes,
        as far as changes are in order of time."""
        ...
