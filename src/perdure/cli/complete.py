"""Names that a shell may finish, looked up where the command would look. Whatever goes wrong, there
are none: somebody is typing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from perdure.cli.load import at_home, database_app, is_server

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perdure.app.app import App

DEFAULT_TIMEOUT_S = 2.0
TIMEOUT_VARIABLE = "PERDURE_COMPLETION_TIMEOUT"
"""The environment variable that sets how many seconds a shell waits for names."""
MOST = 100

Names = dict[str, str]
"""Each with what is to know about it."""
NameSource = Callable[["App"], Awaitable[Names]]


def _completing(find: NameSource) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, given: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = _names(ctx, find)
        return [CompletionItem(it, help=why) for it, why in names.items() if it.startswith(given)]

    return complete


def _names(ctx: click.Context, find: NameSource) -> Names:
    import asyncio
    import logging
    import os

    async def look() -> Names:
        app = database_app(ctx.params.get("url"), ctx.params.get("environment"))
        timeout = float(os.environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT_S))
        async with asyncio.timeout(timeout):
            await _check_schema(app)
            async with await at_home(app, ctx.params.get("environment")):
                return await find(app)

    logging.disable()  # nothing may appear beside what is being typed
    try:
        return asyncio.run(look())
    except Exception:  # noqa: BLE001  # no words, rather than a traceback in a prompt
        return {}


async def _check_schema(app: App) -> None:
    """Opening the app would bring an older schema up to date."""
    if is_server(app.url):
        return
    storage = app.open_storage()
    try:
        await storage.check_schema()
    finally:
        await storage.close()


async def _tasks(app: App) -> Names:
    from perdure.app.session import session_of

    return {it.name: f"queue {it.queue}" for it in await session_of(app).known_tasks()}


async def _queues(app: App) -> Names:
    return dict.fromkeys([it.name for it in await app.queues.list()], "")


async def _schedules(app: App) -> Names:
    return {it.id: it.definition.task for it in await app.schedules.list(limit=MOST)}


async def _webhooks(app: App) -> Names:
    return {it.name: "" for it in await app.webhooks.list()}


async def _workers(app: App) -> Names:
    found = await app.workers.list()
    return {it.id: f"{it.host}:{it.process_id}" for it in found if not it.stopped}


async def _runs(app: App) -> Names:
    page = await app.runs.list(limit=MOST)
    return {it.id: f"{it.task}, {it.status}" for it in page.runs}


def statuses(ctx: click.Context, param: click.Parameter, given: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from perdure.core.run.lifecycle import Status

    return [CompletionItem(it.value) for it in Status if it.startswith(given)]


tasks = _completing(_tasks)
queues = _completing(_queues)
schedules = _completing(_schedules)
webhooks = _completing(_webhooks)
workers = _completing(_workers)
runs = _completing(_runs)
