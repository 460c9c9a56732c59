"""`ctx.transaction()` under the kit: the inline one, whose commit is a boundary like any other, and
which ends with the worker that is killed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from perdure.engine.attempt.context import current
from perdure.storage.contract.transactions import Transaction
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation
from perdure.testing.virtual.time import process_here

T = TypeVar("T")

Pass = Callable[[str], Awaitable[Any]]
"""Passes a boundary, or does not survive it."""


class InlineTransaction(Transaction, Protocol):
    @property
    def drop(self) -> Callable[[], None]:
        """To be called when the process of the handler is killed."""
        ...


class InlineTransactions(Protocol):
    @property
    def dialect(self) -> Dialect: ...

    async def begin(self, limit: timedelta) -> InlineTransaction: ...

    def begin_sync(self, limit: timedelta) -> InlineTransaction: ...

    async def close(self) -> None: ...


class KitTransactions:
    def __init__(self, inner: InlineTransactions, pass_boundary: Pass) -> None:
        self._inner = inner
        self._pass = pass_boundary

    @property
    def dialect(self) -> Dialect:
        return self._inner.dialect

    async def begin(self, limit: timedelta) -> KitTransaction:
        return self._watched(await self._inner.begin(limit))

    def begin_sync(self, limit: timedelta) -> KitTransaction:
        return self._watched(self._inner.begin_sync(limit))

    async def close(self) -> None:
        await self._inner.close()

    def _watched(self, begun: InlineTransaction) -> KitTransaction:
        process = process_here()
        if process is not None:
            process.at_death.append(begun.drop)
        return KitTransaction(begun, self._pass)


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
