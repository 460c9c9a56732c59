"""Fold the older rows of long histories, so that a run that polls costs little."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

from perdure.storage.sql.folded import HistoryRow, fold
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, Row, Rows, Step, last_trip, trip

T = TypeVar("T")
Make = Callable[[], Operation[T]]

FOLDED_ROWS = 64
"""Rows that are folded into one at most. More rows would save little space, and a reader decodes
all of them at once."""
FOLDED_BYTES = 256 * 1024
"""Characters of events that are folded into one row at most. A single row may be longer."""
KEPT_EVENTS = 32
"""Events at the end of a history that stay as they were committed, so that a commit whose answer
was lost is recognised."""


class SqlFolding:
    """See `contract.storage.Storage` for what the method promises."""

    dialect: Dialect

    @abstractmethod
    async def _write_much(self, make: Make[T]) -> T: ...

    async def fold_histories(self, limit: int) -> int:
        return await self._write_much(lambda: fold_histories(limit, self.dialect))


def fold_histories(limit: int, dialect: Dialect) -> Operation[int]:
    """Fold some rows of at most `limit` long histories. Return how many histories those were."""
    [long] = yield trip(Step("long_histories", {"limit": limit}))
    for run_id, folded_to, sequence in long:
        yield from _fold(run_id, folded_to, sequence - KEPT_EVENTS, dialect)
    yield last_trip()
    return len(long)


def _fold(run_id: str, after: int, until: int, dialect: Dialect) -> Operation[None]:
    span = {"run_id": dialect.key(dialect.run_id(run_id)), "after": after, "until": until}
    [found] = yield trip(Step("rows_to_fold", span | {"limit": FOLDED_ROWS}))
    chosen = list(_fitting(found))
    if not chosen:
        return
    first_sequence, at, commit_id, _ = chosen[-1]
    text = fold([HistoryRow(first, str(place), events) for first, place, _, events in chosen])
    place = {"run_id": span["run_id"], "first_sequence": first_sequence}
    yield trip(
        Step("delete_folded", span | {"until": first_sequence}),
        Step("insert_folded", place | {"at": at, "commit_id": commit_id, "events": text}),
        Step("mark_folded", place),
    )


def _fitting(found: Rows) -> Iterator[Row]:
    """Yield the first rows that fit into one; at least the first."""
    length = 0
    for row in found:
        length += len(row[3])
        if length > FOLDED_BYTES and length > len(row[3]):
            return
        yield row
