"""`ctx.transaction()` under the kit: the inline one, whose commit is a boundary like any other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from perdure.engine.context import current
from perdure.storage.rows import Dialect
from perdure.storage.steps import Operation
from perdure.storage.transacting import Transaction, Transactions

T = TypeVar("T")

Pass = Callable[[str], Awaitable[Any]]
"""Passes a boundary, or does not survive it."""


class KitTransactions:
    def __init__(self, inner: Transactions, pass_boundary: Pass) -> None:
        self._inner = inner
        self._pass = pass_boundary

    @property
    def dialect(self) -> Dialect:
        return self._inner.dialect

    async def begin(self, limit: timedelta) -> KitTransaction:
        return KitTransaction(await self._inner.begin(limit), self._pass)

    def begin_sync(self, limit: timedelta) -> KitTransaction:
        return KitTransaction(self._inner.begin_sync(limit), self._pass)

    async def close(self) -> None:
        await self._inner.close()


class KitTransaction:
    def __init__(self, inner: Transaction, pass_boundary: Pass) -> None:
        self._inner = inner
        self._pass = pass_boundary

    @property
    def connection(self) -> Any:
        return self._inner.connection

    @property
    def problem(self) -> Exception | None:
        return self._inner.problem

    @property
    def is_lost(self) -> bool:
        return self._inner.is_lost

    async def run(self, operation: Operation[T]) -> T:
        return await self._inner.run(operation)

    async def conclude(self, operation: Operation[T]) -> T:
        what = f"the commit of the transaction of {current().run.task}"
        await self._pass(f"before {what}")
        value = await self._inner.conclude(operation)
        await self._pass(f"after {what}")
        return value

    async def rollback(self) -> None:
        await self._inner.rollback()
