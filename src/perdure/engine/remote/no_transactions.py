"""What a handler gets that asks for a transaction where there is no connection to the database."""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn

from perdure.errors import TransactionError

NO_TRANSACTION = (
    "this worker reaches its runs over HTTP and has no connection to their database, so effects "
    "and success cannot commit together here; run the worker with the database's own URL, or make "
    "the effect idempotent with ctx.idempotency_key(…)"
)


class NoTransactions:
    """Refuses each, and says why."""

    @property
    def dialect(self) -> NoReturn:
        raise TransactionError(NO_TRANSACTION)

    async def begin(self, limit: timedelta) -> NoReturn:
        raise TransactionError(NO_TRANSACTION)

    def begin_sync(self, limit: timedelta) -> NoReturn:
        raise TransactionError(NO_TRANSACTION)

    async def close(self) -> None:
        """There is nothing to close."""
