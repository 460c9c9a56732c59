"""Trips on one connection, as libpq makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from perdure.storage.postgres import pipeline
from perdure.storage.postgres.pipeline import Asked, Pipeline
from perdure.storage.postgres.pool import PooledConnection
from waiting import MAX_WAIT_S

MUCH = "x" * 3_000_000
PREPARED = Asked("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'perdure%'", {})


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(
        postgres_url, autocommit=True, prepare_threshold=1
    ) as connection:
        yield connection


async def test_both_sides_may_send_more_than_fits_between_them(
    connection: psycopg.AsyncConnection,
) -> None:
    echo = Asked("SELECT :said::text", {"said": MUCH})

    async with asyncio.timeout(MAX_WAIT_S):
        rows = await Pipeline(connection).run([echo] * 5)

    assert rows == [[(MUCH,)]] * 5


async def test_what_failed_with_others_is_prepared_the_next_time(
    connection: psycopg.AsyncConnection,
) -> None:
    trips, divided = Pipeline(connection), "SELECT 1 / :by::int"
    other = Asked("SELECT :a::int + :b::int + :a::int", {"a": 1, "b": 2})
    await trips.run([Asked(divided, {"by": 1}), other])

    with pytest.raises(psycopg.errors.DivisionByZero):
        await trips.run([Asked(divided, {"by": 0}), other])

    assert await trips.run([Asked(divided, {"by": 1}), other]) == [[(1,)], [(4,)]]
    assert (await trips.run([PREPARED]))[0][0][0] >= 2


async def test_what_cannot_be_spelt_leaves_nothing_half_sent(
    connection: psycopg.AsyncConnection,
) -> None:
    trips, good = Pipeline(connection), Asked("SELECT 1", {})

    with pytest.raises(psycopg.DataError):
        await trips.run([good, Asked("SELECT :said::text", {"said": "nothing\0less"})])

    assert await trips.run([good]) == [[(1,)]]


async def test_what_goes_behind_changes_nothing_of_what_came_before(
    connection: psycopg.AsyncConnection,
) -> None:
    trips, good, bad = Pipeline(connection), Asked("SELECT 1", {}), Asked("SELECT 1 / 0", {})

    assert await trips.run([good], behind=[bad]) == [[(1,)]]
    with pytest.raises(psycopg.errors.DivisionByZero):
        await trips.run([bad], behind=[good])
    assert await trips.run([good], behind=[good]) == [[(1,)]]


async def test_only_so_many_statements_are_prepared(
    connection: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MOST_FORMS", 3)
    trips = Pipeline(connection)
    for _ in range(3):
        for number in range(10):
            await trips.run([Asked(f"SELECT {number}", {})])

    assert await trips.run([PREPARED]) == [[(3,)]]


async def test_a_connection_that_is_gone_is_told(connection: psycopg.AsyncConnection) -> None:
    end = Asked("SELECT pg_terminate_backend(pg_backend_pid())", {})

    with pytest.raises(psycopg.OperationalError):
        await Pipeline(connection).run([Asked("SELECT 1", {}), end, Asked("SELECT 2", {})])

    assert connection.closed


async def test_a_trip_that_nobody_waits_for_any_more_ends_its_connection(
    connection: psycopg.AsyncConnection,
) -> None:
    waiting = asyncio.ensure_future(Pipeline(connection).run([Asked("SELECT pg_sleep(60)", {})]))
    await asyncio.sleep(0)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.closed


async def test_the_server_stops_what_nobody_waits_for_any_more(
    connection: psycopg.AsyncConnection, postgres_url: str
) -> None:
    asleep = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
    waiting = asyncio.ensure_future(Pipeline(connection).run([Asked("SELECT pg_sleep(60)", {})]))
    server = connection.info.backend_pid
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as other:

        async def until(is_asleep: bool) -> None:
            async with asyncio.timeout(MAX_WAIT_S):
                while bool(await (await other.execute(asleep, [server])).fetchall()) != is_asleep:
                    pass

        await until(True)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        await until(False)


async def test_what_keeps_failing_is_prepared_once(connection: psycopg.AsyncConnection) -> None:
    trips = Pipeline(connection)
    for _ in range(5):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await trips.run([Asked("SELECT 1 / :by::int", {"by": 0})])

    assert await trips.run([PREPARED]) == [[(1,)]]


async def test_what_the_server_has_forgotten_is_prepared_again(
    connection: psycopg.AsyncConnection,
) -> None:
    trips, good = Pipeline(connection), Asked("SELECT 1", {})
    for _ in range(2):
        await trips.run([good])
    await connection.execute("DEALLOCATE ALL")

    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        await trips.run([good])

    assert await trips.run([good]) == [[(1,)]]


async def test_a_rollback_after_other_questions_leaves_what_is_prepared(postgres_url: str) -> None:
    good = Asked("SELECT 1", {})
    async with await PooledConnection.connect(
        postgres_url, autocommit=True, prepare_threshold=1
    ) as pooled:
        for _ in range(3):
            await pooled.execute("SELECT 2")
            await pooled.trips.run([good])
        await pooled.execute("BEGIN")
        await pooled.rollback()
        await pooled.execute("SELECT 2")

        assert await pooled.trips.run([good]) == [[(1,)]]


async def test_what_answers_with_another_type_is_prepared_again(
    connection: psycopg.AsyncConnection,
) -> None:
    trips, asked = Pipeline(connection), Asked("SELECT number FROM numbers", {})
    await connection.execute("CREATE TEMPORARY TABLE numbers AS SELECT 1 AS number")
    for _ in range(2):
        await trips.run([asked])
    await connection.execute("ALTER TABLE numbers ALTER number TYPE text")

    with pytest.raises(psycopg.errors.FeatureNotSupported):
        await trips.run([asked])

    assert await trips.run([asked]) == [[("1",)]]
