"""What a borrowed connection can do, whatever its driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from perdure.errors import InvalidInput
from perdure.storage.contract.runs import Clock
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, Rows, Trip


class Home(ABC):
    """The place where an app's runs are kept, as a borrowed connection finds it."""

    dialect: Dialect

    @abstractmethod
    def arrive(self) -> Operation[datetime]:
        """Make sure that this is the app's database; the time there. Raises InvalidInput."""

    @abstractmethod
    def tell(self, topics: frozenset[str]) -> Operation[None]:
        """Wake who should look once the caller's transaction is committed, and not before."""


class Borrowed(ABC):
    """`is_async`: its `send` waits. The others do their work at once, wherever they are called."""

    is_async: bool

    @abstractmethod
    async def begin(self) -> None:
        """Raises InvalidInput if nothing that we write would be part of a transaction."""

    @abstractmethod
    async def send(self, request: Trip) -> list[Rows]:
        """Run the statements of a trip. The driver's errors stay as they are: the transaction
        is the caller's, and so is the decision what to do about it."""

    @abstractmethod
    def home(self, url: str, clock: Clock) -> Home:
        """Where the runs of the app at `url` are. Raises InvalidInput if that cannot be here."""


def plain(rows: Iterable[Sequence[Any]]) -> Rows:
    """Rows as our own adapters give them: some drivers have objects for UUIDs."""
    return [tuple(str(v) if isinstance(v, UUID) else v for v in row) for row in rows]


def no_transaction(advice: str) -> InvalidInput:
    problem = "no transaction is open on it, so the run would exist at once, whatever comes after"
    return InvalidInput("connection", f"{problem}; {advice}")
