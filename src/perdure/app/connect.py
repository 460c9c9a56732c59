"""Opens what an app needs, beside its database or at a server's address."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from perdure.storage import is_remote, open_server

if TYPE_CHECKING:
    from perdure.app.openable import OpenableApp
    from perdure.app.session import Opened
    from perdure.engine.client.handles import Handles
    from perdure.engine.definition.task import Task
    from perdure.engine.execution.worker_backend import WorkerBackend
    from perdure.engine.rest.client import RestClient


async def open_app(app: OpenableApp) -> Opened:
    """Connect, and check that both sides understand each other."""
    if is_remote(app.url):
        from perdure.app.remote_session import OpenedServer

        return await OpenedServer.open(app)
    from perdure.app.session import OpenedDatabase

    return await OpenedDatabase.open(app)


def open_backend(app: OpenableApp) -> WorkerBackend:
    """Another connection for a worker, for another loop."""
    if is_remote(app.url):
        from perdure.engine.remote.backend import open_remote_backend

        return open_remote_backend(app.components, app.storage_options)
    from perdure.engine.worker.database_backend import DatabaseBackend

    return DatabaseBackend(app.components, app.connect())


def connect_rest(app: OpenableApp) -> RestClient:
    """The API of the server at the app's URL."""
    from perdure.engine.rest.client import RestClient

    transport = open_server(app.url, app.clock, **app.storage_options)
    return RestClient(app.environment, transport, make_handles(app))


@asynccontextmanager
async def open_rest(app: OpenableApp) -> AsyncIterator[RestClient]:
    """The same for an app that need not be open."""
    client = connect_rest(app)
    try:
        yield client
    finally:
        client.close()


def make_handles(app: OpenableApp) -> Handles:
    from perdure.engine.client.handles import Handles

    tasks: Mapping[str, Task[..., Any]] = ChainMap(app.tasks, app.aliases)
    return Handles(app, tasks)
