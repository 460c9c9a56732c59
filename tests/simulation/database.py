"""The one database of a simulation, and what of it the oracle looks at."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from perdure.core.schedule import Schedule, SkippedSpan
from perdure.storage.sqlite.steady_clock import SteadyClock
from perdure.testing.database.inline import Authority, HistoryRow, InlineDatabase, finish
from perdure.testing.virtual.time import EPOCH, VirtualLoop

__all__ = ["Database", "HistoryRow", "RunRow", "finish"]


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
    schedule_id: str | None
    holds_slot: int


class LimitRow(msgspec.Struct, frozen=True):
    """What holds at a limit, as it is stored."""

    scope: str
    name: str
    max_leases: int | None
    rate_interval: int | None
    rate_burst: int | None
    paused: bool
    fair: bool


class MachineClock(Authority):
    """The clock of the machine on which the database is, which may be set back."""

    def __init__(self) -> None:
        super().__init__()
        self.step = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.step


class DatabaseClock(Authority):
    """Virtual time; after the machine's clock was set back, what SQLite's adapter makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self._machine = MachineClock()
        self._steady: SteadyClock | None = None

    def now(self) -> datetime:
        return super().now() if self._steady is None else self._steady.now()

    def begin(self, loop: VirtualLoop) -> None:
        self.loop = self._machine.loop = loop
        self._steady, self._machine.step = None, timedelta(0)

    def set_back(self, step: timedelta) -> None:
        self._steady = SteadyClock(self._machine)
        self._machine.step = -step


class Database(InlineDatabase):
    """What a simulation writes, read back."""

    clock: DatabaseClock

    def __init__(self) -> None:
        # What handlers write in their transactions.
        effects = "CREATE TABLE effects (run_id TEXT, token TEXT) STRICT"
        super().__init__(effects, clock=DatabaseClock())

    def reset(self, loop: VirtualLoop) -> None:
        super().reset(loop)
        self.clock.begin(loop)

    def rows(self) -> dict[str, RunRow]:
        query = f"SELECT {', '.join(RunRow.__struct_fields__)} FROM perdure_runs ORDER BY id"
        return {row[0]: RunRow(*row) for row in self._raw.execute(query).fetchall()}

    def add_effect(self, run_id: str, token: str) -> None:
        self._raw.execute("INSERT INTO effects VALUES (?, ?)", (run_id, token))

    def effects(self) -> list[tuple[str, str]]:
        """Which runs had an effect, by which lease."""
        query = "SELECT run_id, token FROM effects ORDER BY rowid"
        return [(run_id, token) for run_id, token in self._raw.execute(query).fetchall()]

    def limits(self) -> dict[tuple[str, str], LimitRow]:
        fields = ", ".join(LimitRow.__struct_fields__)
        query = f"SELECT {fields} FROM perdure_limits ORDER BY scope, name"
        return {(row[0], row[1]): LimitRow(*row) for row in self._raw.execute(query).fetchall()}

    def schedules(self) -> list[Schedule]:
        return finish(self.storage.list_schedules("default", limit=1000))

    def spans(self) -> list[SkippedSpan]:
        query = "SELECT DISTINCT schedule_id FROM perdure_skipped_spans"
        names = [name for (name,) in self._raw.execute(query).fetchall()]
        far = EPOCH.replace(year=9000)
        found = [self.storage.spans("default", name, EPOCH, far, limit=1000) for name in names]
        return [span for spans in found for span in finish(spans)]

    def open_letters(self) -> set[str]:
        query = "SELECT run_id FROM perdure_dead_letters WHERE closed_at IS NULL"
        return {run_id for (run_id,) in self._raw.execute(query).fetchall()}
