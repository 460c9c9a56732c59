"""Transactions for handlers: their effects and the run's success become durable together.

A handler's connection is not one of ours. What we run on it are the same operations.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perdure.core.run.commit import Commit
from perdure.core.run.run import Run
from perdure.errors import StorageUnavailable

if TYPE_CHECKING:
    from perdure.storage.sql.rows import Dialect
    from perdure.storage.sql.statements import Operation

T = TypeVar("T")
Decide = Callable[[Run, datetime], Commit]


class TransactionLost(StorageUnavailable):
    """The connection of a handler's transaction is gone; nothing of it is committed."""


class AnswerLost(StorageUnavailable):
    """Nobody knows whether the COMMIT went through. `was_stored` finds out."""


class Transaction(Protocol):
    """A handler's transaction. `connection` is what the handler sees."""

    @property
    def connection(self) -> Any: ...

    @property
    def problem(self) -> Exception | None:
        """Why it was rolled back before its time, if it was."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether its connection is gone, and with it all that was not committed."""
        ...

    async def run(self, operation: Operation[T]) -> T:
        """Run one of our operations in it."""
        ...

    async def conclude(self, operation: Operation[T]) -> T:
        """Run the last operation and commit. Raises AnswerLost; if it raises anything else,
        all is rolled back."""
        ...

    async def rollback(self) -> None: ...


class Transactions(Protocol):
    """Connections for handlers, apart from our own. `limit`: how long one may be held where it
    keeps everybody else from writing."""

    @property
    def dialect(self) -> Dialect: ...

    async def begin(self, limit: timedelta) -> Transaction:
        """For a handler on this loop."""
        ...

    def begin_sync(self, limit: timedelta) -> Transaction:
        """For a handler in this thread. Its methods never wait for a loop: `steps.at_once`."""
        ...

    async def close(self) -> None: ...
