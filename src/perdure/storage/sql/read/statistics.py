"""Count what `perdure status` and the metrics report."""

from __future__ import annotations

from perdure.storage.contract.inspection import NextSchedule, StatusCounts
from perdure.storage.sql.read.runs import moment_of
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, Rows, Step, last_trip

MAX_COUNTED = 10_000


def read_status_counts(environment: str, dialect: Dialect) -> Operation[StatusCounts]:
    scope = {"environment": environment, "most": MAX_COUNTED}
    [[expired]], letters, [[schedules, due]], first, [[now]] = yield last_trip(
        Step("count_expired_leases", scope),
        Step("count_open_dead_letters", scope),
        Step("count_schedules", scope),
        Step("first_schedule", {"environment": environment}),
        Step("read_time"),
    )
    return StatusCounts(
        now=moment_of(now, dialect),
        expired_leases=int(expired),
        dead_letters={str(queue): int(count) for queue, count in letters},
        schedules=int(schedules),
        due_schedules=int(due),
        next_schedule=_next_schedule(first, dialect),
    )


def _next_schedule(rows: Rows, dialect: Dialect) -> NextSchedule | None:
    return NextSchedule(rows[0][0], moment_of(rows[0][1], dialect)) if rows else None
