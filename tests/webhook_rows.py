"""Rows of webhooks as storage keeps them: readable ones, and ones that no sender can read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from perdure.storage.contract.storage import Storage
from perdure.storage.contract.webhooks import StoredWebhook
from raw import execute

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
DELIVERED = json.dumps(
    {
        "number": 1, "at": CREATED_AT, "outcome": "delivered", "message_id": "run_1-1",
        "event": "run.failed", "run_id": "run_1", "sequence": 1, "cursor": None, "status": 204,
        "seconds": 0.1, "error": None, "response": None,
    }
)  # fmt: skip


async def webhook_row(storage: Storage, **changes: Any) -> StoredWebhook:
    """A new webhook at the end of the feed; `changes` are fields of the row."""
    body = {
        "id": "hook_1", "environment": "default", "name": "billing", "with_payload": False,
        "target": {"kind": "http", "url": "https://example.com/"}, "interest": {},
        "created_at": CREATED_AT, "created_by": {"type": "operator", "id": "ada"},
        "progress": {"cursor": await storage.latest_change()},
    }  # fmt: skip
    row = StoredWebhook(
        id="hook_1", environment="default", name="billing", version=1, body=json.dumps(body)
    )
    return replace(row, **changes)


def webhook_body(row: StoredWebhook, **progress: Any) -> str:
    """The body of the row, with other values for these fields of its progress."""
    body = json.loads(row.body)
    return json.dumps(body | {"progress": body["progress"] | progress})


def overwrite_body(url: str, name: str, body: str) -> None:
    """Write past the adapter, as an attacker with the database or newer code could."""
    text = body.replace("'", "''")
    execute(url, f"UPDATE perdure_webhooks SET body = '{text}' WHERE name = '{name}'")
