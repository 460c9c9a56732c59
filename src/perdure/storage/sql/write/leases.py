"""The storage half of upkeep: renewing leases, finding what needs attention, pruning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, is_run_id
from perdure.storage.contract.runs import Renewal, Renewed
from perdure.storage.sql import rows
from perdure.storage.sql.read.runs import keys_of, moment_of, runs_of
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Rows, Step, last_trip, trip
from perdure.storage.sql.write.retention import forget_times

FORGET = (
    "delete_history",
    "delete_tags",
    "delete_batches",
    "delete_dead_letters",
    "delete_logs",
    "delete_progress",
    "delete_runs",
)
"""All that is known of a run; the run last, since the others look at it."""


def renew_leases(renewals: Sequence[Renewal], dialect: Dialect) -> Operation[Renewed]:
    """Lock what is free, renew it, then read what became of all of them."""
    wanted = [
        {"id": dialect.key(r.run_id), "token": r.token, "ttl": _microseconds(r)}
        for r in renewals
        if is_run_id(r.run_id)
    ]
    [locked] = yield trip(Step("lock_leases", {"wanted": rows.json_list(wanted)}))
    free = {dialect.run_id(row[0]) for row in locked}
    mine = {dialect.key(run_id) for run_id in free}
    renewable = [row for row in wanted if row["id"] in mine]
    ids = keys_of([renewal.run_id for renewal in renewals], dialect)
    writes = (Many("renew_leases", renewable),) if renewable else ()
    *_, found, [[now]] = yield last_trip(
        *writes, Step("read_leases", {"ids": ids}), Step("read_time")
    )
    return _renewed(renewals, free, found, moment_of(now, dialect), dialect)


def _microseconds(renewal: Renewal) -> int:
    return round(renewal.ttl.total_seconds() * 1_000_000)


def _renewed(
    renewals: Sequence[Renewal], free: set[str], found: Rows, now: datetime, dialect: Dialect
) -> Renewed:
    rows_by_id = {dialect.run_id(row[0]): row for row in found}
    renewed: dict[str, datetime] = {}
    lost, cancelling, unknown = set(), set(), set()
    for renewal in renewals:
        row = rows_by_id.get(renewal.run_id)
        if row is None or row[1] != renewal.token:
            lost.add(renewal.run_id)
            continue
        if row[3] == Status.CANCELLATION_REQUESTED:
            cancelling.add(renewal.run_id)
        if renewal.run_id in free:
            renewed[renewal.run_id] = moment_of(row[2], dialect)
        else:
            unknown.add(renewal.run_id)
    return Renewed(
        renewed=renewed,
        lost=frozenset(lost),
        cancelling=frozenset(cancelling),
        unknown=frozenset(unknown),
        now=now,
    )


def due_for_attention(limit: int, dialect: Dialect) -> Operation[list[Run]]:
    """Runs to attend to. While there are leases, something is written, too: a storage that cannot
    write must not look as if owners could have renewed theirs."""
    bound = {"limit": limit}
    _, found = yield trip(Step("prove_writable"), Step("due_for_attention", bound))
    runs = runs_of(found, dialect)
    readable = {run.id for run in runs}
    yield from put_off(
        [run_id for row in found if (run_id := dialect.run_id(row[0])) not in readable], dialect
    )
    return runs


def put_off(run_ids: Sequence[str], dialect: Dialect) -> Operation[None]:
    """Leave runs that cannot be processed out of `attention` for an hour."""
    yield last_trip(Many("put_off", [{"id": dialect.key(run_id)} for run_id in run_ids]))


def prune_runs(
    status: Status, before: datetime, limit: int, open_letters: bool, dialect: Dialect
) -> Operation[int]:
    old = {"status": status.value, "before": dialect.instant(before), "limit": limit}
    [found] = yield trip(Step(prune_query(status, open_letters), old))
    yield from forget_times(found, dialect)
    yield last_trip(*_forgetting(("mark_pruned", *FORGET), found, dialect))
    return len(found)


def prune_query(status: Status, open_letters: bool) -> str:
    """Return the name of the query that finds old runs with this status."""
    if status is not Status.DEAD_LETTERED:
        return "finished_before"
    return "opened_before" if open_letters else "closed_before"


def forget_runs(run_ids: Sequence[str], dialect: Dialect) -> Operation[int]:
    [found] = yield trip(Step("finished_among", {"ids": keys_of(run_ids, dialect)}))
    yield last_trip(*_forgetting(FORGET, found, dialect))
    return len(found)


def _forgetting(queries: Sequence[str], found: Rows, dialect: Dialect) -> list[Step]:
    ids = {"ids": rows.json_list([dialect.key(dialect.run_id(row[0])) for row in found])}
    return [Step(query, ids) for query in queries if found]


def prune_keys(limit: int) -> Operation[int]:
    [deleted] = yield last_trip(Step("delete_free_keys", {"limit": limit}))
    return len(deleted)


def reopen_unreadable() -> Operation[None]:
    """Newer code may read what older code could not."""
    yield last_trip(Step("reopen_unreadable"))
