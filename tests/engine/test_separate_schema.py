"""Perdure's tables in a PostgreSQL schema of their own, beside the tables of an application."""

from __future__ import annotations

import psycopg
import pytest

from perdure import App, Context
from perdure.engine.runtime.clock import SystemClock
from perdure.storage import open_storage
from waiting import MAX_WAIT_S

TABLES_BY_SCHEMA = """
SELECT table_schema, count(*) FROM information_schema.tables
 WHERE table_name LIKE 'perdure\\_%' GROUP BY table_schema
"""


@pytest.fixture
async def separate_url(postgres_url: str) -> str:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA perdure")
        connection.execute("CREATE TABLE orders (name text)")
    url = f"{postgres_url}?options=-csearch_path%3Dperdure"
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()
    return url


async def test_runs_are_executed_with_the_tables_in_a_schema_of_their_own(
    separate_url: str, postgres_url: str
) -> None:
    app = App(separate_url)

    @app.task
    async def book(ctx: Context, order: str) -> str:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO public.orders VALUES (%s)", (order,))
        return order

    async with app.run_all():
        run = await book.trigger("A-1")
        assert await run.result(timeout=MAX_WAIT_S) == "A-1"
        # A connection of the application, which does not know of our schema.
        with psycopg.connect(separate_url) as connection:
            connection.execute("SET search_path = public, perdure")
            connection.execute("INSERT INTO orders VALUES ('A-2')")
            second = book.using(connection).trigger_sync("A-3")
        assert await second.result(timeout=MAX_WAIT_S) == "A-3"
        assert "schema" not in {finding.code for finding in (await app.doctor()).findings}

    with psycopg.connect(postgres_url) as connection:
        [(schema, count)] = connection.execute(TABLES_BY_SCHEMA).fetchall()
        assert (schema, count > 10) == ("perdure", True)
        found = connection.execute("SELECT name FROM public.orders ORDER BY name").fetchall()
        assert found == [("A-1",), ("A-2",), ("A-3",)]
