"""Where runs are kept. The only way in: `open_storage`."""

from __future__ import annotations

from typing import Any

from perdure.errors import InvalidInput
from perdure.storage.protocol import Clock, Storage

__all__ = ["Storage", "open_storage"]


def open_storage(url: str, clock: Clock, **options: Any) -> Storage:
    """The storage behind a URL: `sqlite:///runs.db`, `sqlite:////absolute/runs.db` or
    `postgresql://user@host/database`. Connects lazily; `migrate` makes the schema."""
    scheme, _, rest = url.partition("://")
    match scheme:
        case "sqlite":
            from perdure.storage.sqlite import SqliteStorage

            return SqliteStorage(rest.removeprefix("/"), clock, **options)
        case "postgresql" | "postgres":
            from perdure.storage.postgres.storage import PostgresStorage

            return PostgresStorage(url, clock, **options)
        case _:
            known = "sqlite:///file.db or postgresql://user@host/database"
            raise InvalidInput("url", f"{url!r} names no storage; use {known}")
