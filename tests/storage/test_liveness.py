"""Connections that go silent, are cut, or become read-only: no call waits for ever, and the pool
gets rid of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Committed, RunFilter
from perdure.storage.postgres import wakeups as postgres_hints
from perdure.storage.postgres.handler_connection import HandlerConnection
from perdure.storage.postgres.liveness import LimitedConnection, connection_info, is_usable_sync
from perdure.storage.postgres.storage import PostgresStorage
from perdure.storage.postgres.transactions import PostgresTransactions
from perdure.storage.sql.statements import at_once
from proxy import Proxy
from raw import set_read_only
from storage_kit import CLOCK, create, new_run, request
from waiting import MAX_WAIT_S

SOON = timedelta(milliseconds=300)
CONNECTIONS = 5
A_SECOND = timedelta(seconds=1)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStorage]:
    storage = PostgresStorage(
        url, CLOCK, max_connections=CONNECTIONS, answer_timeout=SOON, hints=False, **options
    )
    try:
        yield storage
    finally:
        await storage.close()


async def fill_pool(storage: PostgresStorage) -> None:
    """Have every connection made, and leave them idle."""
    held = [storage._connection() for _ in range(CONNECTIONS)]
    for connection in held:
        await connection.__aenter__()
    for connection in held:
        await connection.__aexit__(None, None, None)


async def test_a_call_on_a_silent_connection_is_made_again_on_another_one(
    postgres_storage_url: str,
) -> None:
    async with (
        Proxy.before(postgres_storage_url) as proxy,
        opened(proxy.url) as storage,
    ):
        await fill_pool(storage)
        proxy.silence()

        [outcome] = await storage.commit([new_run()])

        assert isinstance(outcome, Committed)


async def test_one_silent_connection_has_all_idle_ones_checked(postgres_storage_url: str) -> None:
    tries: list[str] = []
    async with (
        Proxy.before(postgres_storage_url) as proxy,
        opened(proxy.url, on_statement=tries.append) as storage,
    ):
        await fill_pool(storage)
        proxy.silence()
        await create(storage)
        tries.clear()

        for _ in range(CONNECTIONS):
            await create(storage)

        assert tries.count("insert_runs") == CONNECTIONS


@pytest.mark.parametrize("call", ["find", "vitals"])
async def test_a_call_that_may_take_long_finds_a_silent_connection_as_soon_as_others(
    call: str, postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long limit holds only on a connection that has just answered."""
    forever = timedelta(days=1)
    monkeypatch.setattr("perdure.storage.postgres.storage.LONG_ANSWER_TIMEOUT", forever)
    async with (
        Proxy.before(postgres_storage_url) as proxy,
        opened(proxy.url, connect_timeout=SOON, call_timeout=A_SECOND) as storage,
    ):
        await fill_pool(storage)
        proxy.is_silent = True

        with pytest.raises(StorageUnavailable):
            async with asyncio.timeout(MAX_WAIT_S):
                await (storage.vitals() if call == "vitals" else storage.find(RunFilter(), limit=1))


async def test_where_everything_is_silent_a_call_raises(postgres_storage_url: str) -> None:
    async with (
        Proxy.before(postgres_storage_url) as proxy,
        opened(proxy.url, connect_timeout=SOON, call_timeout=A_SECOND) as storage,
    ):
        await fill_pool(storage)
        proxy.is_silent = True

        with pytest.raises(StorageUnavailable):
            await storage.commit([new_run()])


@pytest.mark.parametrize("call", ["now", "check_schema", "vitals", "migrate", "claim"])
async def test_every_call_has_a_deadline(
    call: str, postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONG_ANSWER_TIMEOUT", "MIGRATION_TIMEOUT"):
        monkeypatch.setattr(f"perdure.storage.postgres.storage.{name}", SOON)
    async with (
        Proxy.before(postgres_storage_url) as proxy,
        opened(proxy.url, connect_timeout=SOON, call_timeout=A_SECOND) as storage,
    ):
        await fill_pool(storage)
        proxy.is_silent = True

        with pytest.raises(StorageUnavailable):
            await (storage.claim(request(1)) if call == "claim" else getattr(storage, call)())


async def test_a_silent_listener_ends(
    postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_hints, "CHECK_EVERY", timedelta(0))
    monkeypatch.setattr(LimitedConnection, "answer_timeout", SOON)
    async with Proxy.before(postgres_storage_url) as proxy:
        storage = PostgresStorage(proxy.url, CLOCK)
        transport = storage.hint_transport()
        assert transport is not None

        with pytest.raises(StorageUnavailable):
            await transport.listen(lambda _: proxy.silence())


class Handlers:
    """Begins transactions as handlers do: on this loop, or in a thread."""

    def __init__(
        self, url: str, kind: str, notice: Callable[[str], None] = lambda query: None
    ) -> None:
        self._transactions = PostgresTransactions(url, answer_timeout=SOON, say=notice)
        self._is_async = kind == "async"

    async def begin(self) -> Any:
        if self._is_async:
            return await self._transactions.begin(A_SECOND)
        return await asyncio.to_thread(self._transactions.begin_sync, A_SECOND)

    async def end(self, transaction: Any) -> None:
        if self._is_async:
            await transaction.rollback()
        else:
            await asyncio.to_thread(at_once, transaction.rollback())

    async def fill_pool(self) -> None:
        for transaction in [await self.begin() for _ in range(CONNECTIONS)]:
            await self.end(transaction)

    async def close(self) -> None:
        await self._transactions.close()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_transaction_begins_past_silent_connections(
    kind: str, postgres_storage_url: str
) -> None:
    async with Proxy.before(postgres_storage_url) as proxy:
        handlers = Handlers(proxy.url, kind)
        await handlers.fill_pool()
        proxy.silence()

        transaction = await handlers.begin()

        assert not transaction.is_lost
        await handlers.end(transaction)
        await handlers.close()


async def test_a_process_that_was_stopped_still_finds_its_answer(postgres_url: str) -> None:
    """The loop is held up beyond the deadline, after the question was sent."""
    async with opened(postgres_url) as storage, storage._connection() as connection:
        connection.answer_timeout = timedelta(seconds=0)

        cursor = await connection.execute("SELECT 1")

        assert await cursor.fetchone() == (1,)


def watched(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> list[int]:
    """What the kernel was told about a connection's socket."""
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        return [
            own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        ]


WATCHED = [1, 10, 5_000]


async def test_the_kernel_watches_connections_of_the_pool(postgres_storage_url: str) -> None:
    async with opened(postgres_storage_url) as storage, storage._connection() as connection:
        assert watched(connection) == WATCHED


async def test_the_kernel_watches_the_listener(postgres_storage_url: str) -> None:
    storage = PostgresStorage(postgres_storage_url, CLOCK)
    assert storage._hints is not None

    async with await storage._hints._connect() as connection:
        assert watched(connection) == WATCHED


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_kernel_watches_handlers_connections(
    kind: str, postgres_storage_url: str
) -> None:
    handlers = Handlers(postgres_storage_url, kind)

    transaction = await handlers.begin()

    assert watched(transaction.connection) == WATCHED
    await handlers.end(transaction)
    await handlers.close()


def test_what_the_url_says_stands() -> None:
    url = "postgresql://me@there/runs?keepalives_idle=99&connect_timeout=7"

    info = psycopg.conninfo.conninfo_to_dict(connection_info(url, connect_timeout=2))

    assert (info["keepalives_idle"], info["connect_timeout"]) == ("99", "7")
    assert info["tcp_user_timeout"] == "5000"


async def test_read_only_sessions_leave_the_pool(postgres_storage_url: str) -> None:
    tries: list[str] = []
    async with opened(
        postgres_storage_url, call_timeout=A_SECOND, on_statement=tries.append
    ) as storage:
        set_read_only(postgres_storage_url, True)
        await fill_pool(storage)
        with pytest.raises(StorageUnavailable):
            await storage.commit([new_run()])
        set_read_only(postgres_storage_url, False)
        await create(storage)
        tries.clear()

        for _ in range(CONNECTIONS):
            await create(storage)

        assert tries.count("insert_runs") == CONNECTIONS


async def test_a_session_that_cannot_write_is_not_usable(postgres_storage_url: str) -> None:
    set_read_only(postgres_storage_url, True)

    with HandlerConnection.connect(postgres_storage_url) as connection:
        assert not is_usable_sync(connection, A_SECOND)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_transaction_begins_past_read_only_sessions(
    kind: str, postgres_storage_url: str
) -> None:
    begun: list[str] = []

    def notice(query: str) -> None:
        begun.append(query)
        if begun.count("transaction_id") == 2:  # the first one was refused
            set_read_only(postgres_storage_url, False)

    handlers = Handlers(postgres_storage_url, kind, notice)
    set_read_only(postgres_storage_url, True)

    transaction = await handlers.begin()

    assert not transaction.is_lost
    await handlers.end(transaction)
    await handlers.close()


async def test_a_call_to_a_server_that_is_away_is_not_tried_for_long(
    postgres_storage_url: str,
) -> None:
    async with Proxy.before(postgres_storage_url) as proxy:
        url = proxy.url
    async with opened(
        url, connect_timeout=SOON, call_timeout=A_SECOND, retries=1_000_000
    ) as storage:
        with pytest.raises(StorageUnavailable, match="Connection refused"):
            await storage.commit([new_run()])


class CountingClock(SystemClock):
    """Time passes by sleeping alone, which takes none."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def elapsed(self) -> float:
        return self.slept_s

    def jitter(self) -> float:
        return 1.0

    async def sleep(self, delay: timedelta) -> None:
        self.slept_s += delay.total_seconds()


async def test_the_last_try_begins_when_the_time_of_a_call_is_up(postgres_storage_url: str) -> None:
    async with Proxy.before(postgres_storage_url) as proxy:
        url = proxy.url
    clock = CountingClock()
    storage = PostgresStorage(url, clock, connect_timeout=SOON, call_timeout=A_SECOND)
    try:
        with pytest.raises(StorageUnavailable):
            await storage.commit([new_run()])
    finally:
        await storage.close()

    assert clock.slept_s == pytest.approx(A_SECOND.total_seconds())
