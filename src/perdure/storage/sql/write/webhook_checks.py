"""Checks of what is stored about webhooks, before it is stored.

One sender serves all environments of a database, so a webhook that it could not process must not
be written on any path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from perdure.core.json_text import Instant, check_label
from perdure.core.webhook import (
    Interest,
    Progress,
    check_instant,
    check_interest,
    check_progress,
)
from perdure.errors import InvalidInput
from perdure.storage.contract.webhooks import StoredDelivery, StoredWebhook
from perdure.storage.sql.rows import Dialect

MAX_WEBHOOK_BYTES = 2 * 1024 * 1024
MAX_DELIVERY_BYTES = 256 * 1024
MAX_DELIVERIES = 100_000
MAX_KEPT_DELIVERIES = 10_000
MAX_NUMBER = 2**53

T = TypeVar("T")


class WebhookBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a webhook's body that a sender computes with. Where it posts to, the engine
    checks."""

    created_at: Instant
    interest: Interest
    progress: Progress
    with_payload: bool
    enabled: bool = True


class DeliveryBody(msgspec.Struct, frozen=True, kw_only=True):
    """The field of a delivery's body that others compute with."""

    at: Instant


def check_webhook(webhook: StoredWebhook, dialect: Dialect) -> None:
    """Raise InvalidInput for what a sender could not process."""
    for name in ("id", "environment", "name"):
        check_label(getattr(webhook, name), name)
    _check_number(webhook.version, "version")
    body = _decode(webhook.body, WebhookBody, MAX_WEBHOOK_BYTES)
    check_instant(body.created_at, "created_at")
    check_interest(body.interest)
    progress = check_progress(body.progress)
    gap = () if progress.gap is None else (progress.gap.after, progress.gap.until)
    for cursor in (progress.cursor, *gap):
        if not dialect.is_cursor(cursor):
            raise InvalidInput("cursor", f"{cursor!r:.80} does not come from the change feed")


def check_deliveries(posted: Sequence[StoredDelivery], keep: int) -> None:
    """Raise InvalidInput for deliveries that could not be read again, or too many."""
    if not 0 <= keep <= MAX_KEPT_DELIVERIES:
        raise InvalidInput("keep", f"must be 0 to {MAX_KEPT_DELIVERIES}, not {keep}")
    if len(posted) > MAX_DELIVERIES:
        raise InvalidInput("posted", f"must be at most {MAX_DELIVERIES}, not {len(posted)}")
    for delivery in posted:
        _check_number(delivery.number, "number")
        body = _decode(delivery.body, DeliveryBody, MAX_DELIVERY_BYTES)
        check_instant(body.at, "at")


def _check_number(value: int, field: str) -> None:
    if not 1 <= value < MAX_NUMBER:
        raise InvalidInput(field, f"must be 1 to {MAX_NUMBER - 1}, not {value}")


def _decode(body: str, kind: type[T], max_bytes: int) -> T:
    try:
        encoded = body.encode()
        if len(encoded) > max_bytes:
            raise InvalidInput("body", f"must be at most {max_bytes} bytes, not {len(encoded)}")
        return msgspec.json.decode(encoded, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidInput("body", f"cannot be read: {error}") from error
