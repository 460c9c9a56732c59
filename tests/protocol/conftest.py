"""The two sides of the seam between a worker and what keeps its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from perdure import App
from perdure.engine.remote.backend import RemoteBackend
from perdure.engine.worker.database_backend import DatabaseBackend
from protocol_side import Side
from remote_kit import Hall, World, world_at
from worker_kit import an_entry


@pytest_asyncio.fixture
async def world(hall: Hall, storage_url: str) -> AsyncIterator[World]:
    """A served database."""
    async with world_at(hall, storage_url) as made:
        yield made


@pytest.fixture(params=["database", "server"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest_asyncio.fixture
async def side(world: World, kind: str) -> Side:
    """A registered worker's, beside the database and at its server."""
    backend: DatabaseBackend | RemoteBackend
    if kind == "database":
        backend = DatabaseBackend(world.app.components, world.app.storage)
        made = Side(world.app, backend, world.app.storage)
    else:
        app = App(world.address, api_key="pk_not_used_here", defaults=world.app.defaults)
        backend = RemoteBackend(app.components, await world.server("work", "trigger"))
        made = Side(world.app, backend, backend)
    await backend.heartbeat(an_entry())
    return made
