"""The pool hands out databases again whose schema is as it was, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest

from database_pool import DatabasePool
from perdure.testing.postgres import PostgresServer


@pytest.fixture
def pool(postgres_server: PostgresServer, postgres_template: str) -> Iterator[DatabasePool]:
    opened = DatabasePool(postgres_server, postgres_template)
    yield opened
    opened.close()


def use_one(pool: DatabasePool, statement: LiteralString) -> int:
    """Execute a statement in a database, and give that back. Return its object id."""
    name = pool.take()
    with psycopg.connect(pool.url(name)) as connection:
        [(oid,)] = connection.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchall()
        connection.execute(statement)
    pool.give_back(name)
    return int(oid)


ONE_ROW: LiteralString = "INSERT INTO perdure_batches VALUES ('b', gen_random_uuid())"


def test_databases_with_only_rows_are_emptied_and_used_again_in_turns(pool: DatabasePool) -> None:
    used = [use_one(pool, ONE_ROW) for _ in range(6)]

    assert used == [used[0], used[1]] * 3


def test_a_table_that_a_test_created_is_dropped(pool: DatabasePool) -> None:
    first = use_one(pool, "CREATE TABLE another (number int PRIMARY KEY, word text)")
    use_one(pool, ONE_ROW)

    assert use_one(pool, "CREATE TABLE another (number int)") == first


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TYPE another AS ENUM ()",
        "ALTER TABLE perdure_batches ADD another int",
        "UPDATE perdure_schema SET version = version + 1",
        "DROP TABLE perdure_schema",
    ],
)
def test_a_database_whose_schema_was_changed_is_not_used_again(
    pool: DatabasePool, statement: LiteralString
) -> None:
    changed = use_one(pool, statement)

    assert changed not in [use_one(pool, "SELECT 1") for _ in range(3)]
