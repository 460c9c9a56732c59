"""The connections of our pools, which leave it to us to say what is wrong with them."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

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
    """One of a pool of ours."""


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


logging.getLogger("psycopg.pool").addFilter(PoolsAreQuiet())
