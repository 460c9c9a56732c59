"""The storage half of why a run does not run: who holds a gate, who waits there, who is first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from perdure.core.explain.health import Neglect
from perdure.core.limits.admission import Gate, LimitScope
from perdure.core.run.effects import successor_key
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.storage.contract.explanation import MAX_SUSPECTS, SuspectScope
from perdure.storage.sql import rows
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, Step, last_trip
from perdure.storage.sql.write.limits import NO_LIMITS

MOST_LANES = 1_000
"""Of one task and priority each: more are not looked at."""

_HOLDERS = {
    LimitScope.QUEUE: "holders_of_queue",
    LimitScope.TASK: "holders_of_task",
    LimitScope.KEY: "holders_of_key",
    LimitScope.SCHEDULE: "holders_of_schedule",
}

LAST_OF_ALL = datetime(9000, 1, 1, tzinfo=UTC)


def read_holders(
    environment: str, gate: Gate, limit: int, dialect: Dialect
) -> Operation[list[str]]:
    wanted = {"environment": environment, "name": gate.name, "key": gate.key, "most": limit}
    [found] = yield last_trip(Step(_HOLDERS[gate.scope], wanted))
    return [dialect.run_id(run_id) for (run_id,) in found]


def find_successors(
    environment: str, run_ids: Sequence[str], dialect: Dialect
) -> Operation[dict[str, str]]:
    keys = [rows.key_fields(successor_key(environment, run_id)) for run_id in run_ids]
    [found] = yield last_trip(Step("read_keys", {"wanted": rows.json_list(keys)}))
    return {row[3]: dialect.run_id(row[4]) for row in found}


def find_suspects(scope: SuspectScope, dialect: Dialect) -> Operation[list[str]]:
    wanted = {
        "environment": scope.environment,
        "tasks": rows.json_list(rows.served_tasks(scope.tasks, scope.versions)),
        "queues": None if scope.queues is None else rows.json_list(scope.queues),
        "most": MAX_SUSPECTS,
    }
    [found] = yield last_trip(Step("find_suspects", wanted))
    return [dialect.run_id(run_id) for (run_id,) in found]


def count_parked(environment: str, gate: Gate, limit: int) -> Operation[int]:
    wanted = {"environment": environment, "gate": str(gate), "most": limit}
    [[[count]]] = yield last_trip(Step("count_parked", wanted))
    return int(count)


def read_neglect(environment: str, limit: int, dialect: Dialect) -> Operation[Neglect]:
    wanted = {"environment": environment, "most": limit, "ended": Status.SUCCEEDED.value}
    [[[unreadable, attention_at, ended_at]]] = yield last_trip(Step("read_neglect", wanted))
    return Neglect(int(unreadable), dialect.moment(attention_at), dialect.moment(ended_at))


def find_gates(environment: str, limit: int) -> Operation[list[Gate]]:
    """Gates that somebody is parked behind, up to so many."""
    page = {"after_environment": environment, "after_gate": "", "limit": limit}
    [found] = yield last_trip(Step("read_gates", page))
    return [Gate.parse(gate) for its, gate in found if its == environment and gate not in NO_LIMITS]


def count_ahead(run: Run, is_fair: bool, limit: int, dialect: Dialect) -> Operation[int]:
    """In a fair queue everybody is counted, and the run itself is not."""
    rank = LAST_OF_ALL if is_fair else run.claim_rank
    wanted = {
        "environment": run.environment,
        "queue": run.queue,
        "rank": dialect.instant(rank),
        "id": dialect.key(run.id),
        "lanes": MOST_LANES,
        "most": limit + is_fair,
    }
    [[[count]]] = yield last_trip(Step("count_ahead", wanted))
    return min(max(int(count) - is_fair, 0), limit)
