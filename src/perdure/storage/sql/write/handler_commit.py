"""Write a run's success on a handler's connection, and find a commit whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from perdure.core.run.commit import Commit
from perdure.core.run.run import Run
from perdure.errors import LeaseLost
from perdure.storage.contract.logs import LogBatch
from perdure.storage.contract.runs import Committed
from perdure.storage.sql import rows
from perdure.storage.sql.read.runs import get_runs, keys_of, moment_of
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, Step, last_trip, trip
from perdure.storage.sql.write.commit import judge_batch
from perdure.storage.sql.write.logs import log_steps

Decide = Callable[[Run, datetime], Commit]


def record_success(
    run_id: str, decide: Decide, said: Sequence[LogBatch], dialect: Dialect
) -> Operation[Commit]:
    """Lock the run, decide on what is found, and write that, and what the attempt has said.
    Raises what `decide` raises, and LeaseLost if there is no such run any more."""
    if said:
        yield trip(*log_steps(said, dialect))
    ids = {"ids": keys_of([run_id], dialect)}
    _, [[now]] = yield trip(Step("lock_runs", ids), Step("read_time"))
    found = yield from get_runs([run_id], dialect)
    if run_id not in found:
        raise LeaseLost(run_id)
    commit = decide(found[run_id], moment_of(now, dialect))
    [outcome], writes = yield from judge_batch([commit], dialect)
    if not isinstance(outcome, Committed):
        raise LeaseLost(run_id, f"it could not be written: {outcome}")
    yield writes
    return commit


def find_commit(commit: Commit, dialect: Dialect) -> Operation[bool]:
    """Whether it is stored. Whoever wrote it held the run's row, so after the lock it either is
    or never will be."""
    first = commit.expected_sequence + 1
    key = dialect.key(commit.run.id)
    yield trip(Step("lock_runs", {"ids": rows.json_list([key])}))
    wanted = rows.json_list([{"run_id": key, "first_sequence": first}])
    [found] = yield last_trip(Step("read_commit_ids", {"wanted": wanted}))
    return any(row[2] == commit.commit_id for row in found)
