"""Triggers tasks whose code is not here, beside the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.core.json_text import encode_value
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.trigger import Client
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import KnownTask, check_payload, find_task, settings_of
from perdure.engine.tasks.options import TriggerOptions


async def trigger_known(
    runtime: Runtime,
    client: Client,
    name: str,
    payload: Mapping[str, Any],
    options: TriggerOptions,
) -> RunHandle[Any]:
    """Ask for a run of a task whose code is elsewhere. Its payload is checked as far as its
    schema goes; the worker checks the rest. Raises TaskNotFound and InvalidPayload."""
    entry = await find_task(runtime.storage, runtime.environment, name)
    check_payload(name, entry.payload_schema or {}, payload)
    body = encode_value(dict(payload), limit=runtime.defaults.payload_limit)
    # All that a trigger asks of a task is its settings; results stay plain without a signature.
    return await client.trigger(KnownTask(settings_of(entry)), body, options)
