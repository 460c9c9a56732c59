"""The connections of our pools, which leave it to us to say what is wrong with them."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import psycopg

from perdure.storage.postgres.pipeline import Pipeline

NAME = "perdure"
"""Of every pool of ours."""


class PoolsAreQuiet(logging.Filter):
    """Drops what the driver would say about pools of ours: that the database cannot be reached we
    say ourselves, once and in our words. Pools of others say what they like."""

    def filter(self, record: logging.LogRecord) -> bool:
        told = record.args if isinstance(record.args, tuple) else ()
        return not any(_is_ours(value) for value in told)


def _is_ours(value: object) -> bool:
    return isinstance(value, PooledConnection) or value == NAME


class PooledConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """One of a pool of ours.

    Only `trips` prepares statements. Those that psycopg prepares for `execute` it removes after a
    rollback with DEALLOCATE ALL, and with them those of `trips`."""

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        return await super().execute(*arguments, **{"prepare": False, **options})

    @cached_property
    def trips(self) -> Pipeline:
        return Pipeline(self)


def remembering(refused: list[psycopg.Error]) -> type[PooledConnection]:
    """Connections that leave behind why the last one could not be made: the pool only says that
    it took too long."""

    class Remembering(PooledConnection):
        @classmethod
        async def connect(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                connection = await super().connect(*args, **kwargs)
            except psycopg.Error as error:
                refused[:] = [error]
                raise
            refused.clear()
            return connection

    return Remembering


WHO_ANSWERS = "SELECT pg_backend_pid()"
PREPARED_AFTER = 3
"""So many times a statement is sent as it is."""


def threshold(prepare: bool | None) -> int | None:
    return None if prepare is False else PREPARED_AFTER


async def prepare_if_alone(connection: psycopg.AsyncConnection[Any]) -> None:
    """Behind a pooler in transaction mode the next statement meets another server: one that does
    not know what was prepared, or, worse, knows something else by that name. A pooler makes up
    whom it speaks for, and is known by that."""
    answer = await (await connection.execute(WHO_ANSWERS, prepare=False)).fetchone()
    _heed(connection, answer)


def prepare_if_alone_sync(connection: psycopg.Connection[Any]) -> None:
    _heed(connection, connection.execute(WHO_ANSWERS, prepare=False).fetchone())


def _heed(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], answer: Any) -> None:
    if answer != (connection.info.backend_pid,):
        connection.prepare_threshold = None


logging.getLogger("psycopg.pool").addFilter(PoolsAreQuiet())
