"""The one database of a simulation: real SQLite in memory, run inline, with virtual time."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec

from perdure.storage import open_storage
from perdure.testing.simulation.loop import EPOCH, SimulationLoop

T = TypeVar("T")


class RunRow(msgspec.Struct, frozen=True):
    """A run's row beside its state: what the queries look at."""

    id: str
    sequence: int
    task: str
    queue: str
    concurrency_key: str | None
    claimable_at: int | None
    attention_at: int | None
    lease_token: str | None
    lease_worker: str | None
    lease_expires_at: int | None
    gate: str | None


class LimitRow(msgspec.Struct, frozen=True):
    """What holds at a limit, as it is stored."""

    scope: str
    name: str
    max_leases: int | None
    rate_interval: int | None
    rate_burst: int | None
    paused: bool
    fair: bool


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
        self.loop: SimulationLoop | None = None

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.elapsed())

    def elapsed(self) -> float:
        return 0.0 if self.loop is None else self.loop.time()

    def jitter(self) -> float:
        raise AssertionError("storage takes no chances")

    async def sleep(self, delay: timedelta) -> None:
        raise AssertionError("storage does not sleep")


class Database:
    """Made once and emptied between scenarios, since parsing its statements is what costs."""

    def __init__(self) -> None:
        self.clock = Authority()
        self.storage: Any = cast(Any, open_storage("sqlite:///:memory:", self.clock, inline=True))
        finish(self.storage.migrate())
        self._raw = self.storage._connection.raw
        # What handlers write in their transactions.
        self._raw.execute("CREATE TABLE effects (run_id TEXT, token TEXT) STRICT")
        named = "SELECT name FROM sqlite_master WHERE type = 'table'"
        self._tables = [name for (name,) in self._raw.execute(named).fetchall()]

    def reset(self, loop: SimulationLoop) -> None:
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
            "  FROM history WHERE position > ? ORDER BY position"
        )
        return [HistoryRow(*row) for row in self._raw.execute(query, (position,)).fetchall()]

    def rows(self) -> dict[str, RunRow]:
        query = f"SELECT {', '.join(RunRow.__struct_fields__)} FROM runs ORDER BY id"
        return {row[0]: RunRow(*row) for row in self._raw.execute(query).fetchall()}

    def add_effect(self, run_id: str, token: str) -> None:
        self._raw.execute("INSERT INTO effects VALUES (?, ?)", (run_id, token))

    def effects(self) -> list[tuple[str, str]]:
        """Which runs had an effect, by which lease."""
        query = "SELECT run_id, token FROM effects ORDER BY rowid"
        return [(run_id, token) for run_id, token in self._raw.execute(query).fetchall()]

    def limits(self) -> dict[tuple[str, str], LimitRow]:
        query = f"SELECT {', '.join(LimitRow.__struct_fields__)} FROM limits ORDER BY scope, name"
        return {(row[0], row[1]): LimitRow(*row) for row in self._raw.execute(query).fetchall()}

    def open_letters(self) -> set[str]:
        query = "SELECT run_id FROM dead_letters WHERE closed_at IS NULL"
        return {run_id for (run_id,) in self._raw.execute(query).fetchall()}
