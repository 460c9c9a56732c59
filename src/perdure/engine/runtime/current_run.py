"""The attempt that runs here, as packages below `execution` see it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from perdure.core.run.run import Run

if TYPE_CHECKING:
    from perdure.engine.runtime.runtime import Components
    from perdure.storage.borrowed.create_runs import Order
    from perdure.storage.contract.runs import Outcome


class Lines(Protocol):
    """Takes what a handler says."""

    def line(self, level: int, logger: str, message: str, fields: dict[str, Any], /) -> None: ...


class OpenTransaction(Protocol):
    """The transaction that a handler has open, in which runs can be created."""

    @property
    def connection(self) -> Any: ...

    @property
    def url(self) -> str: ...

    @property
    def children(self) -> Collection[str]:
        """The runs that were created in it."""

    async def create(self, components: Components, order: Order) -> list[Outcome]: ...

    def create_sync(self, components: Components, order: Order) -> list[Outcome]: ...


class CurrentAttempt(Protocol):
    @property
    def run(self) -> Run: ...

    @property
    def sink(self) -> Lines: ...

    @property
    def open_transaction(self) -> OpenTransaction | None: ...

    def _note_wait(self, run_id: str) -> AbstractContextManager[None]: ...


_current: ContextVar[CurrentAttempt] = ContextVar("perdure_context")


def attempt_here() -> CurrentAttempt | None:
    return _current.get(None)


def enter(attempt: CurrentAttempt) -> None:
    _current.set(attempt)


def note_wait_here(run_id: str) -> AbstractContextManager[None]:
    """For handles: note in the attempt that runs here, if there is one, that it awaits a result."""
    attempt = attempt_here()
    return nullcontext() if attempt is None else attempt._note_wait(run_id)


def transaction_here(url: str) -> OpenTransaction | None:
    """The transaction that the handler running here has open in that database, if any."""
    attempt = attempt_here()
    transaction = None if attempt is None else attempt.open_transaction
    return transaction if transaction is not None and transaction.url == url else None
