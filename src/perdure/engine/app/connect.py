"""Opens what an app needs, beside its database or at a server's address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.storage import is_remote

if TYPE_CHECKING:
    from perdure.engine.app.app import App
    from perdure.engine.app.session import Opened
    from perdure.engine.runtime.worker_backend import WorkerBackend


async def open_app(app: App) -> Opened:
    """Connect, and check that both sides understand each other."""
    if is_remote(app.url):
        from perdure.engine.app.remote_session import OpenedServer

        return await OpenedServer.open(app)
    from perdure.engine.app.session import OpenedDatabase

    return await OpenedDatabase.open(app)


def open_backend(app: App) -> WorkerBackend:
    """Another connection for a worker, for another loop."""
    if is_remote(app.url):
        from perdure.engine.remote.backend import open_remote_backend

        return open_remote_backend(app)
    from perdure.engine.worker.database_backend import DatabaseBackend

    return DatabaseBackend(app, app.connect())
