"""Real SQLite in memory, run inline and in virtual time: the database of simulations and tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec

from perdure.storage import open_storage
from perdure.testing.virtual.time import EPOCH, VirtualLoop

T = TypeVar("T")


class HistoryRow(msgspec.Struct, frozen=True):
    position: int
    run_id: str
    first_sequence: int
    commit_id: str
    events: str


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("it waits")


class Authority:
    """The storage's clock: virtual time itself."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.elapsed())

    def elapsed(self) -> float:
        return 0.0 if self.loop is None else self.loop.time()

    def jitter(self) -> float:
        raise AssertionError("storage takes no chances")

    async def sleep(self, delay: timedelta) -> None:
        raise AssertionError("storage does not sleep")


class InlineDatabase:
    """Made once and emptied between uses, since parsing its statements is what costs."""

    def __init__(self, *more_tables: str, clock: Authority | None = None) -> None:
        self.clock = clock or Authority()
        self.storage: Any = cast(Any, open_storage("sqlite:///:memory:", self.clock, inline=True))
        finish(self.storage.migrate())
        self._raw: sqlite3.Connection = self.storage._connection.raw
        for statement in more_tables:
            self._raw.execute(statement)
        self._tables = self._all_tables()

    @property
    def connection(self) -> sqlite3.Connection:
        return self._raw

    def _all_tables(self) -> list[str]:
        named = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return [name for (name,) in self._raw.execute(named).fetchall()]

    def drop_other_tables(self) -> None:
        """What a test made besides ours."""
        for table in set(self._all_tables()) - {*self._tables, "sqlite_sequence"}:
            self._raw.execute(f'DROP TABLE "{table}"')

    def reset(self, loop: VirtualLoop) -> None:
        self.clock.loop = loop
        for table in self._tables:
            self._raw.execute(f"DELETE FROM {table}")

    @property
    def changes(self) -> int:
        """Grows with every row written."""
        return int(self._raw.total_changes)

    def history_after(self, position: int) -> list[HistoryRow]:
        query = (
            "SELECT position, run_id, first_sequence, commit_id, events"
            "  FROM perdure_history WHERE position > ? ORDER BY position"
        )
        return [HistoryRow(*row) for row in self._raw.execute(query, (position,)).fetchall()]
