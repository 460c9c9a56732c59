"""Locks between handlers where one thread drives every session: nothing waits for a session whose
turn on the loop has not come yet.

Advisory locks are granted by the session that lets go of them, so each order here is the only one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from perdure.storage import open_storage
from perdure.storage.postgres.inline_transactions import InlineAsyncTransaction
from perdure.testing.database.inline import Authority

LOCK = "SELECT pg_advisory_xact_lock(1)"
LIMIT = timedelta(minutes=1)


@pytest.fixture
async def transactions(postgres_url: str) -> AsyncIterator[list[InlineAsyncTransaction]]:
    """Three handlers' transactions."""
    storage: Any = open_storage(postgres_url, Authority(), inline=True)
    await storage.migrate()
    yield [await storage.transactions().begin(LIMIT) for _ in range(3)]
    await storage.close()


async def take(transaction: InlineAsyncTransaction) -> None:
    await transaction.connection.execute(LOCK)


async def take_and_end(transaction: InlineAsyncTransaction) -> None:
    await take(transaction)
    await transaction.rollback()


async def begin_to_wait(transaction: InlineAsyncTransaction) -> asyncio.Task[None]:
    waiting = asyncio.create_task(take_and_end(transaction))
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_a_session_waits_for_one_that_was_woken_and_has_not_gone_on_yet(
    transactions: list[InlineAsyncTransaction],
) -> None:
    first, second, third = transactions
    await take(first)
    waiting = await begin_to_wait(second)

    await first.rollback()  # the second one has the lock, and its turn comes later
    await take_and_end(third)

    assert waiting.done()


async def test_a_session_waits_for_one_that_got_its_lock_and_was_not_woken(
    transactions: list[InlineAsyncTransaction],
) -> None:
    first, second, third = transactions
    await take(first)
    waiting = await begin_to_wait(second)

    first.connection.pgconn.exec_(b"ROLLBACK")  # the lock is granted, unannounced
    await take_and_end(third)

    assert waiting.done()
