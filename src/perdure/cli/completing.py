"""Names that a shell may finish, looked up where the command would look. Whatever goes wrong, there
are none: somebody is typing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from perdure.cli.loading import database_app

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perdure.storage import Storage

PATIENCE = 2.0
"""Seconds that somebody waits for a name."""
MOST = 100

Names = dict[str, str]
"""Each with what is to know about it."""
Finding = Callable[["Storage", str], Awaitable[Names]]


def _completing(find: Finding) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, given: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = _found(ctx, find)
        return [CompletionItem(it, help=why) for it, why in names.items() if it.startswith(given)]

    return complete


def _found(ctx: click.Context, find: Finding) -> Names:
    import asyncio
    import logging

    async def look() -> Names:
        app = database_app(ctx.params.get("url"), ctx.params.get("environment"))
        storage = app.open_storage()  # the app itself would bring an older schema up to date
        try:
            async with asyncio.timeout(PATIENCE):
                await storage.check_schema()
                return await find(storage, app.environment)
        finally:
            await storage.close()

    logging.disable()  # nothing may appear beside what is being typed
    try:
        return asyncio.run(look())
    except Exception:  # noqa: BLE001  # no words, rather than a traceback in a prompt
        return {}


async def _tasks(storage: Storage, environment: str) -> Names:
    from perdure.engine.catalogue import known_tasks

    return {it.name: f"queue {it.queue}" for it in await known_tasks(storage, environment)}


async def _queues(storage: Storage, environment: str) -> Names:
    from perdure.core.limits import LimitScope
    from perdure.engine.catalogue import known_tasks

    names = {it.queue for it in await known_tasks(storage, environment)}
    limits = await storage.limits(environment)
    names |= {it.name for it in limits if it.scope is LimitScope.QUEUE}
    return dict.fromkeys(sorted(names), "")


async def _schedules(storage: Storage, environment: str) -> Names:
    found = await storage.list_schedules(environment, limit=MOST)
    return {it.id: it.definition.task for it in found if it.deleted is None}


async def _webhooks(storage: Storage, environment: str) -> Names:
    from perdure.engine.webhooks.hook import read_hooks

    hooks, quarantined = await read_hooks(storage, environment)
    return dict.fromkeys([it.name for it in hooks] + [it.name for it in quarantined], "")


async def _workers(storage: Storage, environment: str) -> Names:
    from perdure.engine.catalogue import known_workers

    found = await known_workers(storage, environment)
    return {it.id: f"{it.host}:{it.process_id}" for it in found if not it.stopped}


async def _runs(storage: Storage, environment: str) -> Names:
    from perdure.storage.protocol import RunFilter

    page = await storage.find(RunFilter(environment=environment), limit=MOST)
    return {it.id: f"{it.task}, {it.status}" for it in page.runs}


def statuses(ctx: click.Context, param: click.Parameter, given: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from perdure.core.lifecycle import Status

    return [CompletionItem(it.value) for it in Status if it.startswith(given)]


tasks = _completing(_tasks)
queues = _completing(_queues)
schedules = _completing(_schedules)
webhooks = _completing(_webhooks)
workers = _completing(_workers)
runs = _completing(_runs)
