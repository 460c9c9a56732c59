"""What storage remembers of schedules: where each one is, and what became of their times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.core.json_text import Instant
from perdure.core.run.run import Run
from perdure.errors import PerdureError

if TYPE_CHECKING:
    # Only named here: whoever defines tasks must not wait for schedules.
    from perdure.core.schedule.definition import DefinedBy, Schedule, SkippedSpan
    from perdure.core.schedule.transition import ScheduleStep
    from perdure.storage.contract.runs import Outcome


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """The step is durable; what became of its commits. One that is Existing had its time before:
    that run is the occurrence."""

    outcomes: tuple[Outcome, ...] = ()


StepOutcome = Stepped | PerdureError
"""What became of one step. ScheduleConflict means: reload and decide again; InvariantViolation:
it would decide a time twice; StorageRefused: it cannot be stored."""


class DueSchedules(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules with times to decide, longest due first; those this code cannot read; and when
    the next one is due that is not yet."""

    schedules: tuple[Schedule, ...] = ()
    unreadable: tuple[str, ...] = ()
    now: Instant
    next_at: Instant | None = None


class ScheduleStorage(Protocol):
    """Every write is compare-and-set on the schedule's version and cursor, which never goes back:
    so no time is decided twice, however many schedulers decide."""

    async def put_schedules(self, steps: Sequence[ScheduleStep]) -> list[StepOutcome]:
        """Store each, all of it or nothing. They share a transaction, not a fate.

        A step is judged against the stored rows: first its schedule must be where it starts, then
        each of its commits as `commit` would, then the schedule again, under lock. It is stored
        without those of its new runs whose occurrence exists already.
        """
        ...

    async def due_schedules(
        self, environment: str, *, limit: int, passing: Sequence[str] = ()
    ) -> DueSchedules:
        """Schedules with a time at or before now; not those that are passed by."""
        ...

    async def get_schedules(self, environment: str, ids: Sequence[str]) -> dict[str, Schedule]:
        """Those of these that exist, deleted ones too. Raises UnreadableHistory."""
        ...

    async def list_schedules(
        self,
        environment: str,
        *,
        limit: int,
        after: str = "",
        defined_by: DefinedBy | None = None,
        deleted: bool = True,
    ) -> list[Schedule]:
        """A page in order of id, with deleted ones only if `deleted`; without those that this code
        cannot read. A page that is not full is the last one."""
        ...

    async def unended(
        self, environment: str, ids: Sequence[str], *, limit: int
    ) -> dict[str, list[Run]]:
        """Of each of these schedules the runs that have not ended, the oldest ones."""
        ...

    async def occurrences(
        self, environment: str, schedule_id: str, first: datetime, last: datetime, *, limit: int
    ) -> list[Run]:
        """Runs of nominal times in this range, both included, in the order of these."""
        ...

    async def spans(
        self, environment: str, schedule_id: str, first: datetime, last: datetime, *, limit: int
    ) -> list[SkippedSpan]:
        """Spans that have a part in this range, in their order."""
        ...

    async def prune_spans(self, before: datetime, limit: int) -> int:
        """Forget spans recorded before then; how many."""
        ...
