"""Carries out bulk orders in this process, beside the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.bulk import QUEUE, TASK, define_bulk, tags_of
from perdure.engine.operators.bulk_order import Order, Report
from perdure.engine.runtime.input import reason_of

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.client.handle import RunHandle


@asynccontextmanager
async def carrier(app: App, by: Actor) -> AsyncIterator[App]:
    """Somebody in this process who takes orders of `by` for `app`'s database and carries them
    out."""
    made = app.without_tasks()
    made.actor = Actor(ActorType.CLIENT, by.id)
    define_bulk(made)
    async with made.worker(concurrency=1, queues=[QUEUE], drain=0):
        yield made


async def place_order(app: App, order: Order) -> RunHandle[Report]:
    """From a `carrier`: durable when it returns."""
    order = replace(order, reason=reason_of(order.reason))
    asked = app.tasks[TASK].options(tags=tags_of(order.action))
    made: RunHandle[Report] = await asked.trigger(order)
    return made
