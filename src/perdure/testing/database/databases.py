"""The databases that the kit runs on, and what it asks them besides what Perdure asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any, NamedTuple

from perdure.errors import InvalidInput
from perdure.storage.sql.storage import SqlStorage
from perdure.testing.database.inline import Authority, InlineDatabase
from perdure.testing.virtual.time import VirtualLoop

SQLITE = "sqlite"
POSTGRES = "postgres"


class Upcoming(NamedTuple):
    """When the next run may be claimed, needs attention or loses its lease, when the next schedule
    is due, whether a run may be claimed already, and the position of the last commit."""

    run: datetime | None
    schedule: datetime | None
    is_any_due: bool
    position: int


class KitDatabase(ABC):
    """A private database with Perdure's schema. Parameters of queries are spelt `:name`."""

    url: str
    storage: SqlStorage
    clock: Authority
    has_other_sessions = False
    """Whether code under test may write to it on connections of its own."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The test's own connection to it."""

    @abstractmethod
    def begin(self, loop: VirtualLoop) -> None:
        """Remove all rows, and all tables that a test has made; the loop has the time."""

    @abstractmethod
    def rows(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def update_time(self) -> None:
        """Give the database the loop's time, which has changed."""

    def is_computing(self) -> bool:
        """Whether a session of the code under test is still at work."""
        return False

    def ask(self, query: str, **parameters: Any) -> Any:
        """The first value of the first row."""
        rows = self.rows(query, **parameters)
        return rows[0][0] if rows else None

    @property
    def position(self) -> int:
        """Of the last commit in the history."""
        return int(self.ask("SELECT max(position) FROM perdure_history") or 0)

    def position_of(self, run_id: str, sequence: int) -> int:
        query = (
            "SELECT max(position) FROM perdure_history"
            " WHERE run_id = :run AND first_sequence <= :sequence"
        )
        key = self.storage.dialect.key(run_id)
        return int(self.ask(query, run=key, sequence=sequence) or 0)

    def created_runs(self) -> list[str]:
        """The ids of all runs, in the order they were created: ids of one instant have none."""
        query = "SELECT run_id FROM perdure_history WHERE first_sequence = 1 ORDER BY position"
        return self._run_ids(query)

    def changed_runs(self, position: int) -> set[str]:
        """The ids of runs that have changed after that position."""
        query = "SELECT DISTINCT run_id FROM perdure_history WHERE position > :position"
        return set(self._run_ids(query, position=position))

    def is_any_due(self) -> bool:
        query = "SELECT 1 FROM perdure_runs WHERE claimable_at <= :now LIMIT 1"
        return self.ask(query, now=self._now()) is not None

    def upcoming(self, worker_id: str) -> Upcoming:
        """What time alone brings next. Leases of this worker do not count: it keeps them."""
        query = (
            "SELECT (SELECT min(at) FROM ("
            "         SELECT claimable_at AS at FROM perdure_runs WHERE claimable_at > :now"
            "         UNION ALL SELECT attention_at FROM perdure_runs"
            "          WHERE attention_at > :now AND lease_expires_at IS NULL"
            "         UNION ALL SELECT lease_expires_at FROM perdure_runs"
            "          WHERE lease_expires_at > :now AND lease_worker <> :worker) AS instants),"
            "       (SELECT min(next_at) FROM perdure_schedules WHERE next_at > :now),"
            "       EXISTS (SELECT 1 FROM perdure_runs WHERE claimable_at <= :now),"
            "       (SELECT max(position) FROM perdure_history)"
        )
        [(run, schedule, is_any_due, position)] = self.rows(
            query, now=self._now(), worker=worker_id
        )
        moment = self.storage.dialect.moment
        return Upcoming(moment(run), moment(schedule), bool(is_any_due), position or 0)

    def has_schedule(self, name: str) -> bool:
        query = "SELECT count(*) FROM perdure_schedules WHERE name = :name"
        return bool(self.ask(query, name=name))

    def _now(self) -> Any:
        return self.storage.dialect.instant(self.clock.now())

    def _run_ids(self, query: str, **parameters: Any) -> list[str]:
        run_id = self.storage.dialect.run_id
        return [run_id(str(found)) for (found,) in self.rows(query, **parameters)]


class SqliteDatabase(KitDatabase):
    """In memory."""

    def __init__(self) -> None:
        self._inline = InlineDatabase()
        self.url = "sqlite:///:memory:"
        self.storage = self._inline.storage
        self.clock = self._inline.clock

    @property
    def connection(self) -> Any:
        return self._inline.connection

    def begin(self, loop: VirtualLoop) -> None:
        self._inline.drop_other_tables()
        self._inline.reset(loop)

    def rows(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self._inline.connection.execute(query, parameters).fetchall()

    def update_time(self) -> None:
        """Do nothing: SQLite asks the loop itself."""

    def close(self) -> None:
        self._inline.connection.close()


_spare: dict[str, list[KitDatabase]] = {}


def take_database(name: str) -> KitDatabase:
    """A database for one kit: `sqlite`, `postgres`, or the URL of a PostgreSQL server on which
    to make one. Making one costs more than most tests, so it is used again."""
    if _spare.get(name):
        return _spare[name].pop()
    if name == SQLITE:
        return SqliteDatabase()
    if name != POSTGRES and not name.startswith(("postgresql://", "postgres://")):
        known = "'sqlite', 'postgres' or the URL of a PostgreSQL server, postgresql://…"
        raise InvalidInput("database", f"must be {known}, not {name!r:.80}")
    from perdure.testing.database.postgres import PostgresDatabase

    return PostgresDatabase(None if name == POSTGRES else name)


def return_database(name: str, database: KitDatabase) -> None:
    """Keep a database for the next kit."""
    _spare.setdefault(name, []).append(database)


def close_spare_databases() -> None:
    """Close the databases that no kit uses now."""
    for spare in _spare.values():
        while spare:
            spare.pop().close()
