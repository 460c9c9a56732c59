"""Schedules in storage: a step and its runs are stored together, or not at all.

Locked in the one order: runs by id, keys by key, limits by name, schedules by name. So a step
learns only last whether it was too late; whoever can know it sooner, by a look without a lock,
takes no keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from perdure.core.run.commit import Commit
from perdure.core.run.effects import KeyKind
from perdure.core.run.run import Run
from perdure.core.run.skip import SkipReason, decode_evidence, encode_evidence
from perdure.core.schedule.definition import DefinedBy, Schedule, SkippedSpan
from perdure.core.schedule.transition import Place, ScheduleStep, decode_schedule, encode_schedule
from perdure.errors import InvariantViolation, ScheduleConflict, UnreadableHistory
from perdure.storage.contract.runs import Committed, Existing, Outcome
from perdure.storage.contract.schedules import DueSchedules, StepOutcome, Stepped
from perdure.storage.sql import rows
from perdure.storage.sql.read.runs import moment_of, runs_of
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Row, Step, Trip, last_trip, trip
from perdure.storage.sql.write.commit import judge_items, writes_of
from perdure.storage.sql.write.settings import limit_body

Name = tuple[str, str]
"""Environment and id."""
MIN_ROWS_READ = 50
"""Rows that a list reads at once, also if fewer are missing on its page."""


class _Steps:
    """The steps of one transaction; those that still have a chance."""

    def __init__(self, steps: Sequence[ScheduleStep]) -> None:
        self.all = steps
        self.lost: dict[int, StepOutcome] = {}
        self.outcomes: dict[str, Outcome] = {}
        """Of commits, by their ids: what is not to be written."""

    @property
    def left(self) -> list[ScheduleStep]:
        return [step for index, step in enumerate(self.all) if index not in self.lost]

    def lose(self, step: ScheduleStep, verdict: StepOutcome) -> None:
        self.lost[next(i for i, one in enumerate(self.all) if one is step)] = verdict

    def commits(self) -> list[Commit]:
        return [commit for step in self.left for commit in step.commits]

    def results(self) -> list[StepOutcome]:
        return [
            self.lost.get(index) or Stepped(tuple(self._outcomes_of(step)))
            for index, step in enumerate(self.all)
        ]

    def _outcomes_of(self, step: ScheduleStep) -> Iterator[Outcome]:
        for commit in step.commits:
            made = Committed(commit.run.id, commit.run.sequence, commit.records)
            yield self.outcomes.get(commit.commit_id, made)


def put_schedules(steps: Sequence[ScheduleStep], dialect: Dialect) -> Operation[list[StepOutcome]]:
    mine = _Steps(steps)
    yield from _refuse_late(mine, dialect)
    asked = mine.commits()
    verdicts, any_parked = yield from judge_items(asked, dialect)
    mine.outcomes = {asked[index].commit_id: verdict for index, verdict in verdicts.items()}
    for step in mine.left:
        _judge_commits(mine, step)
    yield from _lock(mine, dialect)
    yield from _insert_new(mine, dialect)
    yield from _give_back_keys(mine, asked, dialect)
    winners = [it for it in mine.commits() if it.commit_id not in mine.outcomes]
    writes = writes_of(winners, dialect, any_parked=any_parked)
    yield Trip((*writes.steps, *_schedule_writes(mine.left, dialect).steps), last=True)
    return mine.results()


def _refuse_late(mine: _Steps, dialect: Dialect) -> Operation[None]:
    """Those that contradict themselves, and those that were too late from the beginning."""
    for step in mine.all:
        if step.misplaced is not None:
            mine.lose(step, InvariantViolation(step.schedule.id, step.misplaced))
    seen: set[Name] = set()
    for step in mine.left:
        if _name(step) in seen:
            mine.lose(step, ScheduleConflict(step.schedule.id, "it moves twice at once"))
        seen.add(_name(step))
    [found] = yield trip(Step("read_places", {"wanted": _wanted(mine.left)}))
    _compare(mine, _places(found, dialect))


def _compare(mine: _Steps, places: dict[Name, Place]) -> None:
    for step in mine.left:
        place = places.get(_name(step))
        if place != step.expected:
            found = "does not exist" if place is None else f"is at {place.version}, {place.cursor}"
            mine.lose(step, ScheduleConflict(step.schedule.id, f"it {found}"))


def _judge_commits(mine: _Steps, step: ScheduleStep) -> None:
    """One stale run spoils the step; but an occurrence that exists is as good as made."""
    for commit in step.commits:
        verdict = mine.outcomes.get(commit.commit_id)
        if verdict is not None and not _is_made(verdict):
            mine.lose(step, ScheduleConflict(step.schedule.id, str(verdict)))
            return


def _is_made(verdict: Outcome) -> bool:
    return isinstance(verdict, Existing) and verdict.key.kind is KeyKind.OCCURRENCE


def _lock(mine: _Steps, dialect: Dialect) -> Operation[None]:
    """Limits, then schedules; and only now it is certain where these are."""
    limited: dict[str, list[dict[str, str]]] = defaultdict(list)
    for step in mine.left:
        if step.limit is not None:
            place = {"scope": step.limit.scope.value, "name": step.limit.name}
            limited[step.limit.environment].append(place)
    locks = [
        Step("lock_limits", {"environment": name, "wanted": rows.json_list(limited[name])})
        for name in sorted(limited)
    ]
    *_, found = yield trip(*locks, Step("lock_schedules", {"wanted": _wanted(mine.left)}))
    _compare(mine, _places(found, dialect))


def _insert_new(mine: _Steps, dialect: Dialect) -> Operation[None]:
    new = sorted((step for step in mine.left if step.expected is None), key=_name)
    if not new:
        return
    answers = yield trip(*(Step("insert_schedule", _fields(step, dialect)) for step in new))
    for step, kept in zip(new, answers, strict=True):
        if not kept:
            mine.lose(step, ScheduleConflict(step.schedule.id, "it exists"))


def _give_back_keys(mine: _Steps, asked: Sequence[Commit], dialect: Dialect) -> Operation[None]:
    """Of runs that will not be. Not of those that are, by an earlier try whose answer was lost:
    it is over, since the schedule's lock was to be had."""
    chosen = {commit.commit_id for commit in mine.commits()}
    dropped = [it for it in asked if it.commit_id not in chosen and it.expected_sequence == 0]
    if not dropped:
        return
    wanted = [{"run_id": dialect.key(it.run.id), "first_sequence": 1} for it in dropped]
    [stored] = yield trip(Step("read_commit_ids", {"wanted": rows.json_list(wanted)}))
    made = {dialect.run_id(row[0]) for row in stored}
    keys = [
        row for it in dropped if it.run.id not in made for row in rows.taken_key_fields(it, dialect)
    ]
    yield trip(Many("drop_keys", keys))


def _schedule_writes(steps: Sequence[ScheduleStep], dialect: Dialect) -> Trip:
    known = [step for step in steps if step.expected is not None]
    changed = [_fields(step, dialect) for step in known if step.limit is not None]
    advanced = [_cursor_fields(step, dialect) for step in known if step.limit is None]
    return trip(
        Many("update_schedules", changed),
        Many("advance_schedules", advanced),
        Many("insert_spans", [_span_fields(it, dialect) for step in steps for it in step.spans]),
        Many("put_slots", [_slot_fields(step) for step in steps if step.limit is not None]),
    )


def due_schedules(
    environment: str, limit: int, passing: Sequence[str], dialect: Dialect
) -> Operation[DueSchedules]:
    due = {"environment": environment, "limit": limit, "passing": rows.json_list(passing)}
    found, following, [[now]] = yield last_trip(
        Step("due_schedules", due),
        Step("next_schedule", {"environment": environment}),
        Step("read_schedule_time"),
    )
    readable = [(row[0], _readable(row, dialect)) for row in found]
    return DueSchedules(
        schedules=tuple(schedule for _, schedule in readable if schedule is not None),
        unreadable=tuple(name for name, schedule in readable if schedule is None),
        now=moment_of(now, dialect),
        next_at=dialect.moment(following[0][0]) if following else None,
    )


def get_schedules(
    environment: str, ids: Sequence[str], dialect: Dialect
) -> Operation[dict[str, Schedule]]:
    wanted = {"environment": environment, "names": rows.json_list(ids)}
    [found] = yield last_trip(Step("get_schedules", wanted))
    return {row[0]: _schedule_of(row, dialect) for row in found}


def read_schedules(names: Iterable[Name], dialect: Dialect) -> Operation[dict[Name, Schedule]]:
    """Of these, in whatever environments, those that can be read."""
    by_environment: dict[str, list[str]] = defaultdict(list)
    for environment, name in sorted(names):
        by_environment[environment].append(name)
    answers = yield trip(
        *(
            Step("get_schedules", {"environment": environment, "names": rows.json_list(wanted)})
            for environment, wanted in by_environment.items()
        )
    )
    return {
        (environment, schedule.id): schedule
        for environment, found in zip(by_environment, answers, strict=True)
        for row in found
        if (schedule := _readable(row, dialect)) is not None
    }


def list_schedules(
    environment: str,
    after: str,
    limit: int,
    defined_by: DefinedBy | None,
    deleted: bool,
    dialect: Dialect,
) -> Operation[list[Schedule]]:
    """Read on behind schedules that are left out, so that a page is full while there are more."""
    query, kind = "list_schedules", {}
    if defined_by is not None:
        query, kind = "list_schedules_defined_by", {"defined_by": defined_by.value}
    listed: list[Schedule] = []
    while len(listed) < limit:
        rows_read = max(limit - len(listed), MIN_ROWS_READ)
        page = {"environment": environment, "after": after, "limit": rows_read}
        [found] = yield trip(Step(query, page | kind))
        readable = [it for row in found if (it := _readable(row, dialect)) is not None]
        listed += [schedule for schedule in readable if deleted or schedule.deleted is None]
        if len(found) < rows_read:
            break
        after = found[-1][0]
    return listed[:limit]


def read_unended(
    environment: str, ids: Sequence[str], limit: int, dialect: Dialect
) -> Operation[dict[str, list[Run]]]:
    wanted = {"environment": environment, "names": rows.json_list(ids), "limit": limit}
    [found] = yield last_trip(Step("unended_runs", wanted))
    runs: dict[str, list[Run]] = {name: [] for name in ids}
    for run in runs_of(found, dialect):
        runs[run.schedule_id or ""].append(run)
    return runs


def read_occurrences(
    environment: str, name: str, first: datetime, last: datetime, limit: int, dialect: Dialect
) -> Operation[list[Run]]:
    wanted = _range(environment, name, first, last, limit, dialect)
    [found] = yield last_trip(Step("runs_at_nominal", wanted))
    return runs_of(found, dialect)


def read_spans(
    environment: str, name: str, first: datetime, last: datetime, limit: int, dialect: Dialect
) -> Operation[list[SkippedSpan]]:
    wanted = _range(environment, name, first, last, limit, dialect)
    [found] = yield last_trip(Step("read_spans", wanted))
    return [_span_of(row, dialect) for row in found]


def prune_spans(before: datetime, limit: int, dialect: Dialect) -> Operation[int]:
    old = {"before": dialect.instant(before), "limit": limit}
    [deleted] = yield last_trip(Step("delete_spans", old))
    return len(deleted)


# Rows


def _range(
    environment: str, name: str, first: datetime, last: datetime, limit: int, dialect: Dialect
) -> rows.Fields:
    between = {"first": dialect.instant(first), "last": dialect.instant(last)}
    return {"environment": environment, "name": name, "limit": limit} | between


def _name(step: ScheduleStep) -> Name:
    return step.schedule.environment, step.schedule.id


def _wanted(steps: Sequence[ScheduleStep]) -> str:
    names = [_name(step) for step in steps]
    return rows.json_list([{"environment": place, "name": name} for place, name in names])


def _places(found: Sequence[Row], dialect: Dialect) -> dict[Name, Place]:
    return {
        (environment, name): Place(version, moment_of(cursor, dialect))
        for environment, name, version, cursor in found
    }


def _cursor_fields(step: ScheduleStep, dialect: Dialect) -> rows.Fields:
    schedule = step.schedule
    return {
        "environment": schedule.environment,
        "name": schedule.id,
        "cursor": dialect.instant(schedule.cursor),
        "next_at": dialect.instant(schedule.next_at),
    }


def _fields(step: ScheduleStep, dialect: Dialect) -> rows.Fields:
    schedule = step.schedule
    return _cursor_fields(step, dialect) | {
        "version": schedule.version,
        "defined_by": schedule.defined_by.value,
        "body": encode_schedule(schedule),
    }


def _slot_fields(step: ScheduleStep) -> rows.Fields:
    limit = step.limit
    assert limit is not None
    return {
        "environment": limit.environment,
        "scope": limit.scope.value,
        "name": limit.name,
        "max_leases": limit.max_leases,
        "body": limit_body(limit),
    }


def _span_fields(span: SkippedSpan, dialect: Dialect) -> rows.Fields:
    return {
        "environment": span.environment,
        "schedule_id": span.schedule_id,
        "first_at": dialect.instant(span.first),
        "last_at": dialect.instant(span.last),
        "count": span.count,
        "reason": span.reason.value,
        "recorded_at": dialect.instant(span.recorded_at),
        "evidence": None if span.evidence is None else encode_evidence(span.evidence),
    }


def _span_of(row: Row, dialect: Dialect) -> SkippedSpan:
    schedule_id, environment, first, last, count, reason, recorded_at, evidence = row
    return SkippedSpan(
        schedule_id=schedule_id,
        environment=environment,
        first=moment_of(first, dialect),
        last=moment_of(last, dialect),
        count=count,
        reason=SkipReason(reason),
        recorded_at=moment_of(recorded_at, dialect),
        evidence=None if evidence is None else decode_evidence(evidence),
    )


def _schedule_of(row: Row, dialect: Dialect) -> Schedule:
    name, version, cursor, forgotten, body = row
    place = Place(version, moment_of(cursor, dialect))
    return decode_schedule(name, body, place, dialect.moment(forgotten))


def _readable(row: Row, dialect: Dialect) -> Schedule | None:
    """One that cannot be read must not hide the others."""
    try:
        return _schedule_of(row, dialect)
    except UnreadableHistory:
        return None
