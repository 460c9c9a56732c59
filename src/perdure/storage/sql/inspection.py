"""The storage half of looking at all of it: counts and the audit trail."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import asdict

from perdure.core.audit_chain import SealedEntry
from perdure.core.run.effects import DeadLetter, DeadLetterClosed
from perdure.core.run.lifecycle import TERMINAL, Status
from perdure.storage.contract.inspection import Ended, LetterFilter, LetterPage, StatusCounts
from perdure.storage.contract.runs import RunFilter
from perdure.storage.sql import rows
from perdure.storage.sql.read.drift import find_drift, find_strays
from perdure.storage.sql.read.runs import find_ids, search
from perdure.storage.sql.read.statistics import read_status_counts
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Step, last_trip, trip
from perdure.storage.sql.write.dead_letters import (
    close_dead_letters,
    count_letters,
    find_dead_letters,
    find_letter_ids,
    read_dead_letter,
)
from perdure.storage.sql.write.leases import forget_runs, prune_query

T = TypeVar("T")
Make = Callable[[], Operation[T]]


class SqlOversight:
    """See `oversight.Oversight` for what each method promises."""

    dialect: Dialect

    @abstractmethod
    async def _write(self, make: Make[T]) -> T: ...

    @abstractmethod
    async def _write_much(self, make: Make[T]) -> T: ...

    @abstractmethod
    async def _read(self, make: Make[T]) -> T: ...

    @abstractmethod
    async def _read_much(self, make: Make[T]) -> T: ...

    async def count(self, filter: RunFilter, *, most: int) -> int:
        return await self._read_much(lambda: count_found(filter, most, self.dialect))

    async def find_ids(
        self, filter: RunFilter, *, limit: int, cursor: str | None = None
    ) -> list[str]:
        return await self._read_much(lambda: find_ids(filter, limit, cursor, self.dialect))

    async def throughput(self, environment: str, since: datetime, step: timedelta) -> list[Ended]:
        return await self._read_much(lambda: count_ended(environment, since, step, self.dialect))

    async def pace(self, environment: str, since: datetime) -> dict[str, int]:
        return await self._read_much(lambda: count_pace(environment, since, self.dialect))

    async def held(self, environment: str) -> dict[str, int]:
        return await self._read_much(lambda: count_held(environment))

    async def status_counts(self, environment: str) -> StatusCounts:
        return await self._read_much(lambda: read_status_counts(environment, self.dialect))

    async def latest_ended(
        self, environment: str, statuses: Sequence[Status], since: datetime, *, limit: int
    ) -> list[str]:
        wanted = (environment, statuses, since, limit)
        return await self._read_much(lambda: latest_ended(*wanted, self.dialect))

    async def prunable(
        self, status: Status, before: datetime, *, most: int, open_letters: bool = False
    ) -> int:
        return await self._read_much(
            lambda: count_prunable(status, before, most, open_letters, self.dialect)
        )

    async def forget_runs(self, run_ids: Sequence[str]) -> int:
        return await self._write_much(lambda: forget_runs(run_ids, self.dialect))

    async def drift(self, run_ids: Sequence[str]) -> dict[str, list[str]]:
        return await self._read_much(lambda: find_drift(run_ids, self.dialect))

    async def strays(self, environment: str, *, limit: int) -> dict[str, str]:
        return await self._read_much(lambda: find_strays(environment, limit, self.dialect))

    async def latest_change(self) -> str:
        return await self._read(latest_change)

    async def find_dead_letters(
        self, filter: LetterFilter, *, limit: int, cursor: str | None = None
    ) -> LetterPage:
        return await self._read_much(lambda: find_dead_letters(filter, limit, cursor, self.dialect))

    async def find_letter_ids(
        self,
        filter: LetterFilter,
        opened_until: datetime,
        *,
        limit: int,
        cursor: str | None = None,
    ) -> list[str]:
        wanted = (filter, opened_until, limit, cursor)
        return await self._read_much(lambda: find_letter_ids(*wanted, self.dialect))

    async def count_letters(self, filter: LetterFilter, *, most: int) -> int:
        return await self._read_much(lambda: count_letters(filter, most))

    async def dead_letter(self, run_id: str) -> DeadLetter | None:
        return await self._read(lambda: read_dead_letter(run_id, self.dialect))

    async def close_dead_letters(self, closings: Sequence[DeadLetterClosed]) -> frozenset[str]:
        return await self._write(lambda: close_dead_letters(closings, self.dialect))

    async def append_audit(self, entries: Sequence[SealedEntry]) -> bool:
        return await self._write(lambda: append_audit(entries))

    async def audit_head(self, environment: str) -> SealedEntry | None:
        found = await self._read(lambda: read_audit_head(environment))
        return found[0] if found else None

    async def audit_entries(
        self, environment: str, *, after: int = 0, limit: int = 1000
    ) -> list[SealedEntry]:
        return await self._read_much(lambda: read_audit(environment, after, limit))


def count_found(filter: RunFilter, most: int, dialect: Dialect) -> Operation[int]:
    [[[count]]] = yield last_trip(search("count_found", filter, None, {"most": most}, dialect))
    return int(count)


def count_ended(
    environment: str, since: datetime, step: timedelta, dialect: Dialect
) -> Operation[list[Ended]]:
    wanted = {
        "environment": environment,
        "statuses": rows.json_list(sorted(TERMINAL)),
        "since": dialect.instant(since),
        "step": step // timedelta(microseconds=1),
    }
    [found] = yield last_trip(Step("count_ended", wanted))
    return [Ended(since + number * step, Status(status), count) for number, status, count in found]


def count_pace(environment: str, since: datetime, dialect: Dialect) -> Operation[dict[str, int]]:
    wanted = {
        "environment": environment,
        "statuses": rows.json_list(sorted(TERMINAL)),
        "since": dialect.instant(since),
    }
    [found] = yield last_trip(Step("count_pace", wanted))
    return {str(queue): int(count) for queue, count in found}


def count_held(environment: str) -> Operation[dict[str, int]]:
    [found] = yield last_trip(Step("count_held_by_worker", {"environment": environment}))
    return {str(worker_id): int(count) for worker_id, count in found}


def latest_ended(
    environment: str, statuses: Sequence[Status], since: datetime, limit: int, dialect: Dialect
) -> Operation[list[str]]:
    wanted = {
        "environment": environment,
        "statuses": rows.json_list(sorted(statuses)),
        "since": dialect.instant(since),
        "limit": limit,
    }
    [found] = yield last_trip(Step("latest_ended", wanted))
    return [dialect.run_id(row[0]) for row in found]


def count_prunable(
    status: Status, before: datetime, most: int, open_letters: bool, dialect: Dialect
) -> Operation[int]:
    old = {"status": status.value, "before": dialect.instant(before), "most": most}
    query = f"count_{prune_query(status, open_letters)}"
    [[[count]]] = yield last_trip(Step(query, old))
    return int(count)


def latest_change() -> Operation[str]:
    [[[cursor]]] = yield last_trip(Step("latest_change"))
    return str(cursor)


def append_audit(entries: Sequence[SealedEntry]) -> Operation[bool]:
    """Whoever writes the first of them has seen the head that it follows; so the others, which
    nobody else can have sealed, are written without looking. What stands in the way may be an
    earlier try of ours, whose answer was lost."""
    first, *others = (asdict(entry) for entry in entries)
    place = {"environment": first["environment"], "position": first["position"]}
    taken, found = yield trip(Step("insert_first_audit", first), Step("read_audit_entry", place))
    if not taken and found[0][-1] != first["hash"]:
        yield last_trip()
        return False
    yield last_trip(Many("insert_audit", others if taken else []))
    return True


def read_audit_head(environment: str) -> Operation[list[SealedEntry]]:
    [found] = yield last_trip(Step("read_audit_head", {"environment": environment}))
    return [_sealed(*row) for row in found]


def read_audit(environment: str, after: int, limit: int) -> Operation[list[SealedEntry]]:
    wanted = {"environment": environment, "after": after, "limit": limit}
    [found] = yield last_trip(Step("read_audit", wanted))
    return [_sealed(*row) for row in found]


def _sealed(environment: str, position: int, body: str, hash: str) -> SealedEntry:
    return SealedEntry(environment=environment, position=position, body=body, hash=hash)
