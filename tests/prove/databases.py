"""A fresh database for each slice. PostgreSQL keeps fsync on, as in production."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.engine.runtime.clock import SystemClock
from perdure.storage import open_storage
from perdure.testing.postgres import PrivatePostgres

MakeDatabase = Callable[[Path, int], str]
"""Takes a slice's directory and number, and returns the URL of its database."""


@contextmanager
def databases(name: str | None) -> Iterator[MakeDatabase]:
    """Yield a function that makes the database of a slice."""
    if name is None:
        yield lambda directory, number: ""
    elif name == "sqlite":
        yield lambda directory, number: _migrated(f"sqlite:///{directory / 'runs.db'}")
    else:
        with PrivatePostgres.start(durable=True) as server:
            yield lambda directory, number: _migrated(server.create_database(f"slice_{number}"))


def _migrated(url: str) -> str:
    asyncio.run(_migrate(url))
    return url


async def _migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()
