"""How storage operations are written once and run on any driver.

An operation is a generator. It yields the statements to run next, all of which may travel
together, and gets back the rows of each. Whoever drives it knows a driver, and how to wait:
the SQLite adapter executes at once on its writer thread, the PostgreSQL adapter sends each
yield as one pipeline. No operation knows whether it is awaited, and before its first yield it only
reckons: the transaction may not have begun yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.errors import StorageError

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = list[Row]


class Step(msgspec.Struct, frozen=True):
    """One named statement, run once; with `conditions`, further named pieces of its WHERE."""

    query: str
    parameters: dict[str, Any] = {}
    conditions: tuple[str, ...] = ()


class Many(msgspec.Struct, frozen=True):
    """One named statement for each of `rows`; gives back no rows."""

    query: str
    rows: Sequence[dict[str, Any]]


class Bulk(msgspec.Struct, frozen=True):
    """One named statement for all of `rows`, each of which has the statement's parameters in their
    order. For what every run goes through: no names are repeated. An update
    answers with a row for each run that it moved; `update_runs` tells their ids."""

    query: str
    rows: Sequence[Row]


Statement = Step | Many | Bulk


class Trip(msgspec.Struct, frozen=True):
    """Statements that travel together. `last`: the transaction may be committed with them."""

    steps: tuple[Statement, ...]
    last: bool = False


Operation = Generator[Trip, list[Rows], T]


def trip(*steps: Statement) -> Trip:
    return Trip(tuple(step for step in steps if isinstance(step, Step) or step.rows))


def last_trip(*steps: Statement) -> Trip:
    return Trip(trip(*steps).steps, last=True)


async def drive(operation: Operation[T], send: Callable[[Trip], Awaitable[list[Rows]]]) -> T:
    """Run an operation to its end. Storage errors are its own to handle first."""
    try:
        request = next(operation)
        while True:
            try:
                results = await send(request)
            except StorageError as error:
                request = operation.throw(error)
            else:
                request = operation.send(results)
    except StopIteration as stop:
        value: T = stop.value
        return value


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits: what is written once for those who await
    serves those who cannot."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("it waits, where nobody can wait for it")
