"""What those ask of a storage who look at all of it: servers, dashboards, auditors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.core.run.effects import DeadLetter, DeadLetterClosed, DeadLetterStatus
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import DEFAULT_ENVIRONMENT

if TYPE_CHECKING:
    from perdure.core.audit_chain import SealedEntry
    from perdure.storage.contract.runs import RunFilter


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; what is not given does not matter."""

    environment: str = DEFAULT_ENVIRONMENT
    status: DeadLetterStatus | None = None
    task: str | None = None
    queue: str | None = None
    failure_kind: str | None = None
    fingerprint: str | None = None


class LetterPage(msgspec.Struct, frozen=True):
    """Newest run first. `cursor` continues after the last one; none: that was all."""

    letters: tuple[DeadLetter, ...]
    cursor: str | None


class Ended(msgspec.Struct, frozen=True):
    """How many runs ended so, in the step of time that begins at `since`."""

    since: datetime
    status: Status
    count: int


class NextSchedule(msgspec.Struct, frozen=True):
    """The schedule whose time comes first. If `at` has passed, no scheduler has decided it yet."""

    schedule_id: str
    at: datetime


class StatusCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What status and metrics report, counted up to 10,000. `dead_letters`: open ones, by queue.
    `schedules`: those that have a next time; `due_schedules`: those whose time has come."""

    now: datetime
    expired_leases: int = 0
    dead_letters: dict[str, int] = {}
    schedules: int = 0
    due_schedules: int = 0
    next_schedule: NextSchedule | None = None


def feed_order(cursor: str) -> tuple[int | str, ...]:
    """Cursors of the change feed compare by this: their parts in turn, numbers as numbers."""
    return tuple(int(part) if part.isdecimal() else part for part in cursor.split("."))


class Oversight(Protocol):
    """Nothing is decided by the answers."""

    async def count(self, filter: RunFilter, *, most: int) -> int:
        """How many runs fit the filter, counted only so far."""
        ...

    async def find_ids(
        self, filter: RunFilter, *, limit: int, cursor: str | None = None
    ) -> list[str]:
        """The ids of a page of runs, newest first: those before `cursor`, the id of a run."""
        ...

    async def throughput(self, environment: str, since: datetime, step: timedelta) -> list[Ended]:
        """How many runs ended since then, step by step. Found by index; what ended is looked at."""
        ...

    async def pace(self, environment: str, since: datetime) -> dict[str, int]:
        """How many runs ended since then, queue by queue. Found as those are."""
        ...

    async def held(self, environment: str) -> dict[str, int]:
        """How many runs each worker holds at this moment."""
        ...

    async def status_counts(self, environment: str) -> StatusCounts:
        """Count expired leases, open dead letters and schedules, by index."""
        ...

    async def latest_ended(
        self, environment: str, statuses: Sequence[Status], since: datetime, *, limit: int
    ) -> list[str]:
        """The runs that ended so last, by id, if they did since then. Found as those are."""
        ...

    async def prunable(
        self, status: Status, before: datetime, *, most: int, open_letters: bool = False
    ) -> int:
        """Return how many runs `prune` would delete in all environments, counted up to `most`."""
        ...

    async def forget_runs(self, run_ids: Sequence[str]) -> int:
        """Forget those of these that have ended, history and all; how many. Unlike after `prune`
        nobody who reads the feed learns that something is missing: for runs that were only made
        to measure, in an environment where nobody else is."""
        ...

    async def drift(self, run_ids: Sequence[str]) -> dict[str, list[str]]:
        """What lies beside these runs, for queries and uniqueness, and does not follow from them;
        nothing of those that are as they should be."""
        ...

    async def strays(self, environment: str, *, limit: int) -> dict[str, str]:
        """Histories without their run, and runs without the beginning of their history: by id,
        what is missing. Looks at all there is."""
        ...

    async def latest_change(self) -> str:
        """A cursor of the change feed after which only what is not yet visible comes."""
        ...

    async def find_dead_letters(
        self, filter: LetterFilter, *, limit: int, cursor: str | None = None
    ) -> LetterPage:
        """A page of dead letters. Pages neither lose nor repeat one while others are added."""
        ...

    async def find_letter_ids(
        self,
        filter: LetterFilter,
        opened_until: datetime,
        *,
        limit: int,
        cursor: str | None = None,
    ) -> list[str]:
        """The runs of a page of dead letters that were opened by then, newest first: those before
        `cursor`, the id of a run."""
        ...

    async def count_letters(self, filter: LetterFilter, *, most: int) -> int:
        """How many dead letters fit the filter, counted only so far."""
        ...

    async def dead_letter(self, run_id: str) -> DeadLetter | None:
        """The dead letter of this run, open or closed."""
        ...

    async def close_dead_letters(self, closings: Sequence[DeadLetterClosed]) -> frozenset[str]:
        """Close dead letters that no run replays. Return the runs of those that were open."""
        ...

    async def append_audit(self, entries: Sequence[SealedEntry]) -> bool:
        """Store entries of one environment that follow each other; false, and none of them, if
        another stands where the first belongs."""
        ...

    async def audit_head(self, environment: str) -> SealedEntry | None:
        """The last entry."""
        ...

    async def audit_entries(
        self, environment: str, *, after: int = 0, limit: int = 1000
    ) -> list[SealedEntry]:
        """Entries by position."""
        ...
