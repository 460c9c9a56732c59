"""Triggers runs and orders bulk actions through the API of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.engine.client.handle import RunHandle
from perdure.engine.operators.bulk_order import OF_LETTERS, Action, Order, Report
from perdure.engine.operators.filters import make_filter, make_letter_filter
from perdure.engine.rest.client import RestClient
from perdure.engine.rest.runs import query_words
from perdure.engine.rest.schedule_settings import encode_retry
from perdure.engine.runtime.runtime import OpenComponents
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import InvalidInput

_CODE_ONLY_OPTIONS = ("parent_id", "root_id")
"""Options that the API's trigger does not take."""


class BulkShown(msgspec.Struct, frozen=True):
    matched: int
    run_id: str | None = None


async def trigger_remotely(
    rest: RestClient, task: str, payload: Mapping[str, Any], options: TriggerOptions
) -> RunHandle[Any]:
    """Trigger a task of the server's catalogue. The server checks the payload. Raises
    TaskNotFound and InvalidInput."""
    given = {
        name: value for name, value in msgspec.structs.asdict(options).items() if value is not None
    }
    for name in _CODE_ONLY_OPTIONS:
        if name in given:
            raise InvalidInput(name, "is for code that has the task; leave it out")
    if options.retry is not None:
        given["retry"] = encode_retry(options.retry)
    return await rest.create_run("runs", task=task, payload=dict(payload), **given)


async def count_remotely(
    components: OpenComponents, rest: RestClient, action: Action, words: Any
) -> int:
    """How many runs or dead letters an order would be about."""
    if action in OF_LETTERS:
        make_letter_filter(components.environment, None, dict(words))  # type: ignore[arg-type]  # checks
        path = "dead-letters:count"
    else:
        make_filter(components.environment, words, components.now())
        path = "runs:count"
    return (await rest.get(BulkShown, path, action=action, **query_words(dict(words)))).matched


async def order_remotely(rest: RestClient, order: Order, expected: int) -> RunHandle[Report]:
    """The run at the server that carries out the order. It is refused if more than `expected`
    match by now."""
    path = "dead-letters:bulk" if order.action in OF_LETTERS else "runs:bulk"
    words: dict[str, Any] = query_words({**order.words})
    shown = await rest.send(
        BulkShown,
        "POST",
        path,
        action=order.action,
        filter={name: value for name, value in words.items() if value is not None},
        reason=order.reason,
        expect=expected,
    )
    assert shown.run_id is not None, "an order with an expected count makes a run"
    return rest.handles.make(shown.run_id, created=True)
