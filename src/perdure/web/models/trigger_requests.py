"""Bodies of the routes that trigger runs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from perdure.engine.client.catalogue_client import Wish
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import InvalidInput
from perdure.web.models.requests import (
    Asked,
    Instant,
    Label,
    Payload,
    Priority,
    RunId,
    Seconds,
    Tags,
    object_of,
)
from perdure.web.models.schedule_requests import RetryRules

MAX_BATCH = 500
"""Runs in one batch."""


class TriggerBody(Asked, frozen=True, kw_only=True):
    """A run to ask for. Durations are seconds."""

    task: Label
    payload: Payload | UnsetType = UNSET
    queue: Label | None = None
    priority: Priority | None = None
    run_at: Instant | None = None
    delay: Seconds | None = None
    ttl: Seconds | None = None
    retry: RetryRules | None = None
    timeout: Seconds | None = None
    idempotency_key: Label | None = None
    idempotency_ttl: Seconds | None = None
    singleton_key: Label | None = None
    concurrency_key: Label | None = None
    tags: Tags | None = None
    meta: dict[str, Any] | None = None
    debug: bool = False
    continuation_of: RunId | None = None

    def wish(self, limit: int, idempotency_key: str | None = None) -> Wish:
        """Raises InvalidInput. The header and the field may both name the key, if they agree."""
        if idempotency_key not in (None, self.idempotency_key) and self.idempotency_key is not None:
            raise InvalidInput("idempotency_key", "differs from the Idempotency-Key header")
        options = {
            name: getattr(self, name)
            for name in TriggerBody.__struct_fields__
            if name not in ("task", "payload")
        }
        options["retry"] = None if self.retry is None else self.retry.retry
        options["idempotency_key"] = self.idempotency_key or idempotency_key
        if self.payload is UNSET:
            return Wish(self.task, {}, TriggerOptions(**options))
        payload = object_of(self.payload, limit)
        return Wish(self.task, payload, TriggerOptions(**options), len(bytes(self.payload)))


class BatchBody(Asked, frozen=True, kw_only=True):
    runs: Annotated[list[TriggerBody], Meta(min_length=1, max_length=MAX_BATCH)]
