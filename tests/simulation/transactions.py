"""Handlers' transactions in a simulation: what they write reaches the server with their end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.engine.attempt.context import current
from perdure.errors import LeaseLost, StorageUnavailable, TransactionError
from perdure.storage.contract.transactions import AnswerLost
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.faults import Server

T = TypeVar("T")


class SimulatedTransactions:
    """Whose answers may be lost, like any other's."""

    def __init__(self, server: Server, process: Process) -> None:
        self._server = server
        self._process = process
        self._idle: list[int] = []
        """Of each idle connection, in which life of the server it was made."""

    @property
    def dialect(self) -> Dialect:
        dialect: Dialect = self._server.database.storage.dialect
        return dialect

    async def begin(self, limit: timedelta) -> SimulatedTransaction:
        storage = self._server.database.storage
        try:
            await self._server.call(self._process, "begin", storage.now)
            self._server.check_writable()
            self._check_connection()
        except StorageUnavailable:
            self._server.interrupt(current().run)
            raise
        return SimulatedTransaction(self._server, self._process, self._idle)

    def _check_connection(self) -> None:
        """Take one from the pool, or make one. In some scenarios nothing but its use tells that
        it is dead."""
        made = self._idle.pop() if self._idle else self._server.starts
        if made != self._server.starts and self._server.faults.plan.stale:
            self._server.notes.sometimes("dead connection met by a handler")
            raise StorageUnavailable("simulated, died while idle")

    def begin_sync(self, limit: timedelta) -> SimulatedTransaction:
        raise TransactionError("a simulation has no threads")

    async def close(self) -> None:
        pass


class SimulatedTransaction:
    """The handler's connection is this itself: `write` is all that it can do."""

    problem = None
    is_lost = False

    def __init__(self, server: Server, process: Process, idle: list[int]) -> None:
        self._server = server
        self._process = process
        self._idle = idle
        self._made = server.starts
        self._writes: list[tuple[str, str]] = []
        self._has_arrived = False

    @property
    def connection(self) -> SimulatedTransaction:
        return self

    def write(self, run_id: str, token: str) -> None:
        self._writes.append((run_id, token))

    async def run(self, operation: Operation[T]) -> T:
        raise TransactionError("triggering inside a transaction is not simulated")

    async def conclude(self, operation: Operation[T]) -> T:
        storage = self._server.database.storage
        run = current().run
        self._idle.append(self._made)

        def make() -> Operation[T]:
            return self._server.refuse_writes(self._all(operation))

        try:
            value: T = await self._server.call(
                self._process, "transaction", lambda: storage._write(make)
            )
        except LeaseLost:
            self._server.notes.sometimes("transaction's lease lost")
            raise
        except StorageUnavailable as error:
            self._server.interrupt(run)
            if not self._has_arrived:
                raise
            self._server.notes.sometimes("transaction's answer lost")
            raise AnswerLost(str(error)) from error
        return value

    async def rollback(self) -> None:
        self._idle.append(self._made)

    def _all(self, operation: Operation[T]) -> Operation[T]:
        """Inline, the transaction has begun before the first yield, too."""
        self._has_arrived = True
        for write in self._writes:
            self._server.database.add_effect(*write)
        return (yield from operation)


def effect_problems(runs: dict[str, Any], effects: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """An effect without its success, a success without its effect, or one of them twice."""
    found: dict[str, list[str]] = {}
    for run_id, token in effects:
        found.setdefault(run_id, []).append(token)
    problems = []
    for run_id, run in runs.items():
        result = run.result if run.status == "succeeded" else None
        wanted = result.get("effects", []) if isinstance(result, dict) else []
        if found.get(run_id, []) != wanted:
            problems.append((run_id, f"its effects are {found.get(run_id)}, not {wanted}"))
    return problems
