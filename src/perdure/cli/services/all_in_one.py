"""A worker, a scheduler, maintenance, a webhook sender and a server, all in this process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from perdure.cli.output.answer import run

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.worker.process import WorkerOptions
    from perdure.web.server import ServerOptions


def run_together(
    app: App,
    worker: WorkerOptions,
    server: ServerOptions,
    *,
    on_ready: Callable[[str], None],
    first: Callable[[App], Awaitable[None]] | None = None,
    leave: Callable[[int], object] = os._exit,
) -> None:
    """Until asked to stop. Handlers have the main thread; the server is on another, where no
    handler can hold it up. `on_ready` is called there with the server's address, `first` with an
    app that is open, before anything is executed."""
    from perdure.engine.worker.process import run_worker
    from perdure.web.server import Served

    @asynccontextmanager
    async def besides(twin: App) -> AsyncIterator[None]:
        async with Served(twin, server) as served:
            if first is not None:
                async with twin:
                    await first(twin)
            on_ready(served.address)
            yield

    async def work() -> None:
        code = await run_worker(app, worker, besides=besides, leave=leave)
        if code:
            click.get_current_context().exit(code)

    run(work())
