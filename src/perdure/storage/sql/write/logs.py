"""The storage half of runs' logs and of what queues have to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from perdure.core.run.run import is_run_id
from perdure.errors import InvalidInput
from perdure.storage.contract.logs import MAX_LINES, LogBatch, LogLine, Progress, parse_cursor
from perdure.storage.contract.runs import Backlog
from perdure.storage.sql.read.runs import keys_of, moment_of
from perdure.storage.sql.rows import Dialect, Fields
from perdure.storage.sql.statements import Many, Operation, Row, Step, last_trip

MOST_COUNTED = 10_000
MOST_LANES = 1_000
"""Of one task and priority each, in all queues together: more are not looked at."""


def write_logs(batches: Sequence[LogBatch], dialect: Dialect) -> Operation[None]:
    yield last_trip(*log_steps(batches, dialect))


def log_steps(batches: Sequence[LogBatch], dialect: Dialect) -> tuple[Many, ...]:
    known = [batch for batch in batches if is_run_id(batch.run_id)]
    lines = [_line(batch, line, dialect) for batch in known for line in batch.lines]
    trims = [_owner(b, dialect) | _kept(b) for b in known if b.keep_from > 1]
    progress = [_progress(b, b.progress, dialect) for b in known if b.progress is not None]
    return Many("insert_logs", lines), Many("trim_logs", trims), Many("put_progress", progress)


def _owner(batch: LogBatch, dialect: Dialect) -> Fields:
    return {"run_id": dialect.key(batch.run_id), "attempt": batch.attempt}


def _kept(batch: LogBatch) -> Fields:
    """Lines after the last one kept go, too: a worker may number its lines backwards."""
    return {"keep_from": batch.keep_from, "keep_to": batch.keep_from + MAX_LINES - 1}


def _line(batch: LogBatch, line: LogLine, dialect: Dialect) -> Fields:
    return _owner(batch, dialect) | {
        "number": line.number,
        "at": dialect.instant(line.at),
        "level": line.level,
        "logger": line.logger,
        "message": line.message,
        "fields": msgspec.json.encode(line.fields).decode() if line.fields else None,
    }


def _progress(batch: LogBatch, progress: Progress, dialect: Dialect) -> Fields:
    return _owner(batch, dialect) | {
        "at": dialect.instant(progress.at),
        "fraction": progress.fraction,
        "message": progress.message,
    }


def read_logs(
    run_id: str, after: str | None, limit: int, dialect: Dialect
) -> Operation[list[LogLine]]:
    if limit < 1:
        raise InvalidInput("limit", f"must be 1 or more, not {limit}")
    attempt, number = parse_cursor(after)
    if not is_run_id(run_id):
        return []
    wanted = {"attempt": attempt, "number": number, "limit": limit}
    [found] = yield last_trip(Step("read_logs", wanted | {"run_id": dialect.key(run_id)}))
    return [_line_of(row, dialect) for row in found]


def _line_of(row: Row, dialect: Dialect) -> LogLine:
    attempt, number, at, level, logger, message, fields = row
    return LogLine(
        attempt=attempt,
        number=number,
        at=moment_of(at, dialect),
        level=level,
        logger=logger,
        message=message,
        fields={} if fields is None else msgspec.json.decode(fields),
    )


def read_progress(run_ids: Sequence[str], dialect: Dialect) -> Operation[dict[str, Progress]]:
    [found] = yield last_trip(Step("read_progress", {"ids": keys_of(run_ids, dialect)}))
    return {
        dialect.run_id(run_id): Progress(
            attempt=attempt, at=moment_of(at, dialect), fraction=fraction, message=message
        )
        for run_id, attempt, at, fraction, message in found
    }


def read_backlog(environment: str, dialect: Dialect) -> Operation[list[Backlog]]:
    scope = {"environment": environment, "most": MOST_COUNTED}
    lanes, held, [[now]] = yield last_trip(
        Step("count_lanes", scope | {"lanes": MOST_LANES}),
        Step("count_held", scope),
        Step("read_time"),
    )
    queues: dict[str, Backlog] = {}
    for queue, task, version, due, later, oldest in lanes:
        before = queues.get(queue) or Backlog(queue=queue)
        age = _age(moment_of(oldest, dialect), moment_of(now, dialect))
        queues[queue] = replace(
            before,
            due=before.due + int(due),
            later=before.later + int(later),
            oldest_due_age=max(before.oldest_due_age, age),
            due_versions=before.due_versions + (((task, version),) if due else ()),
        )
    for what, queue, count in held:
        queues[queue] = replace(queues.get(queue) or Backlog(queue=queue), **{what: count})
    return [queues[queue] for queue in sorted(queues)]


def _age(oldest: datetime, now: datetime) -> timedelta:
    return max(now - oldest, timedelta(0))
