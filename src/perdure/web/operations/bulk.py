"""Orders about many runs over HTTP: first a count, then a durable run that carries them out."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from perdure.engine.client.catalogue_client import Wish
from perdure.engine.operators.bulk import MOST, TASK, count_fitting, tags_of
from perdure.engine.operators.bulk_order import Action, Order, Words
from perdure.engine.operators.filters import make_filter, plain_words
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import InvalidInput
from perdure.web.models.requests import (
    BulkLettersBody,
    BulkRunsBody,
    LetterCountQuery,
    RunCountQuery,
)
from perdure.web.operations.operation import Call
from perdure.web.operations.runs import client
from perdure.web.problems import Refusal, RequestRefused


class BulkView(msgspec.Struct, frozen=True):
    """How many fit, and the run that was made to see to them, if one was asked for."""

    matched: int
    run_id: str | None = None


async def bulk_runs(call: Call, body: BulkRunsBody) -> BulkView:
    return await _order(call, body, plain_words(body.filter.words, call.app.time()))


async def bulk_dead_letters(call: Call, body: BulkLettersBody) -> BulkView:
    return await _order(call, body, body.filter.words)


async def count_runs(call: Call, query: RunCountQuery) -> BulkView:
    if query.action is not None:
        return BulkView(
            await count_fitting(call.app.runtime, Action(query.action.value), query.words)
        )
    wanted = make_filter(call.app.environment, query.words, call.app.time())
    return BulkView(await call.app.storage.count(wanted, most=MOST))


async def count_dead_letters(call: Call, query: LetterCountQuery) -> BulkView:
    return BulkView(await count_fitting(call.app.runtime, Action.DISCARD, query.words))


async def _order(
    call: Call, body: BulkRunsBody | BulkLettersBody, words: dict[str, Any]
) -> BulkView:
    action = Action(body.action.value)
    matched = await count_fitting(call.app.runtime, action, words)
    if body.expect is None:
        call.status = 200
        return BulkView(matched)
    if matched >= MOST:
        raise InvalidInput("filter", f"fits {MOST} or more; make it narrower")
    if matched > body.expect:
        problem = f"{matched} fit by now, not {body.expect}; look again, and expect that many"
        raise RequestRefused(Refusal.MORE_THAN_EXPECTED, problem)
    order = Order(
        action=action,
        words=cast(Words, words),
        before=call.app.time(),
        by=call.by,
        reason=body.reason,
    )
    wish = Wish(TASK, {"order": msgspec.to_builtins(order)}, TriggerOptions(tags=tags_of(action)))
    made = await call.at.asking.ask(wish, client(call))
    call.headers["Location"] = f"/v1/runs/{made.id}"
    return BulkView(matched, made.id)
