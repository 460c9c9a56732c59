"""The claim operation: store the outcomes that ride along, then hand over due runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.commit import Commit, prepare_commit
from perdure.core.decide import Claim, decide_claim
from perdure.core.limits import Admission, Gate, LimitScope, admit, gates_of
from perdure.core.run import Run
from perdure.errors import PerdureError, StorageError, UnreadableHistory
from perdure.storage import rows
from perdure.storage.committing import judge_batch, writes_of
from perdure.storage.protocol import Claimed, ClaimRequest, Outcome
from perdure.storage.rows import Dialect
from perdure.storage.steps import Many, Operation, Step, Trip, trip

UNREADABLE = "unreadable"
"""The gate of runs that this code cannot read: parked, reported, never retried in a loop."""


class Round(msgspec.Struct, frozen=True):
    """One transaction's claim. `parked`: full limits took places, so it is worth another look."""

    claimed: Claimed
    parked: bool = False


class Candidates(msgspec.Struct, frozen=True):
    """Due runs under lock, at storage time `now`."""

    runs: tuple[Run, ...]
    unreadable: tuple[str, ...]
    limited: bool
    now: datetime


def claim_runs(
    request: ClaimRequest, batch: Sequence[Commit], dialect: Dialect, *, look_at: int = 0
) -> Operation[Round]:
    """Outcomes first, a savepoint, then the claim: if that half fails the outcomes stay.

    Limits are locked once a transaction, in order of name: whoever looks again, after having
    parked what it found behind full limits, must do so in another one. It should `look_at` more
    runs then than it has tokens for, to get past what else stands behind those limits.
    """
    if not batch:
        return (yield from _claim(request, dialect, (), look_at))
    outcomes, writes = yield from judge_batch(batch, dialect)
    yield Trip((*writes.steps, Step("savepoint")))
    try:
        return (yield from _claim(request, dialect, tuple(outcomes), look_at))
    except (StorageError, OverflowError):
        _, [[now]] = yield Trip((Step("rollback_to_savepoint"), Step("read_time")), last=True)
        moment = dialect.moment(now)
        assert moment is not None
        return Round(Claimed(outcomes=tuple(outcomes), now=moment))


def _claim(
    request: ClaimRequest, dialect: Dialect, outcomes: tuple[Outcome, ...], look_at: int
) -> Operation[Round]:
    wanted = max(len(request.tokens), look_at)
    found = yield from _candidates(request, wanted, dialect)
    admission, now = yield from _admit(request, found, dialect)
    parked = [(run.id, str(gate)) for run, gate in admission.parked]
    parked += [(run_id, UNREADABLE) for run_id in found.unreadable]
    commits, impossible = _decide(request, admission.admitted, now)
    parked += [(run_id, UNREADABLE) for run_id in impossible]
    writes = trip(_park(parked, dialect), *writes_of(commits, dialect, any_parked=False).steps)
    results = yield Trip((*writes.steps, Step("next_claimable", _scope(request))), last=True)
    claimed = Claimed(
        runs=tuple(commit.run for commit in commits if commit.run.lease is not None),
        outcomes=outcomes,
        now=now,
        next_claimable_at=dialect.moment(results[-1][0][0]),
    )
    return Round(claimed, bool(parked))


def _scope(request: ClaimRequest) -> dict[str, Any]:
    return {
        "environment": request.environment,
        "tasks": rows.json_list(request.tasks),
        "queues": None if request.queues is None else rows.json_list(request.queues),
    }


def _candidates(request: ClaimRequest, wanted: int, dialect: Dialect) -> Operation[Candidates]:
    due, [[now]] = yield trip(_search(request, wanted, dialect), Step("read_time"))
    runs: list[Run] = []
    unreadable: list[str] = []
    for row in due:
        try:
            runs.append(rows.run_of(row, dialect))
        except UnreadableHistory:
            unreadable.append(dialect.run_id(row[0]))
    moment = dialect.moment(now)
    assert moment is not None
    limited = bool(due and due[0][4])
    return Candidates(tuple(runs), tuple(unreadable), limited, moment)


def _search(request: ClaimRequest, wanted: int, dialect: Dialect) -> Step:
    scope = _scope(request) | {"wanted": wanted}
    if request.run_ids is None:
        return Step("claim_candidates", scope)
    ids = rows.json_list([dialect.key(run_id) for run_id in request.run_ids])
    return Step("claim_named", scope | {"ids": ids})


def _admit(
    request: ClaimRequest, found: Candidates, dialect: Dialect
) -> Operation[tuple[Admission, datetime]]:
    """Who of the candidates may be claimed, under the limits there are, and from when on."""
    everyone = Admission(found.runs, ())
    if not found.limited:
        return everyone, found.now
    gates = sorted({gate for run in found.runs for gate in gates_of(run)})
    environment = {"environment": request.environment}
    names = sorted({(gate.scope.value, gate.name) for gate in gates})
    wanted = rows.json_list([{"scope": scope, "name": name} for scope, name in names])
    [locked] = yield trip(Step("lock_limits", environment | {"wanted": wanted}))
    limits = {(LimitScope(scope), name): most for scope, name, most in locked}
    counted = [gate for gate in gates if (gate.scope, gate.name) in limits]
    if not counted:
        return everyone, found.now
    # The time again: the wait for the limit must not use up the lease.
    holders, [[now]] = yield trip(
        Step("count_holders", environment | {"wanted": rows.json_list(gate_fields(counted))}),
        Step("read_time"),
    )
    moment = dialect.moment(now)
    assert moment is not None
    return admit(found.runs, limits, holders_of(holders)), moment


def gate_fields(gates: Sequence[Gate]) -> list[rows.Fields]:
    return [{"scope": g.scope.value, "name": g.name, "key": g.key} for g in gates]


def holders_of(counted: Sequence[tuple[Any, ...]]) -> dict[Gate, int]:
    return {Gate(LimitScope(scope), name, key): count for scope, name, key, count in counted}


def _park(parked: Sequence[tuple[str, str]], dialect: Dialect) -> Many:
    return Many("park_runs", [{"id": dialect.key(run_id), "gate": gate} for run_id, gate in parked])


def _decide(
    request: ClaimRequest, runs: Sequence[Run], now: datetime
) -> tuple[list[Commit], list[str]]:
    """The claims, and the runs that nobody can claim as they are."""
    commits: list[Commit] = []
    impossible: list[str] = []
    claimed = 0
    for run in runs:
        if claimed == len(request.tokens):
            break
        offer = Claim(
            token=request.tokens[claimed],
            worker_id=request.worker_id,
            lease_ttl=request.lease_ttl,
            start=claimed < request.start,
        )
        try:
            commit = prepare_commit(run, decide_claim(run, offer, now), request.commit_id)
        except (PerdureError, OverflowError):
            impossible.append(run.id)
            continue
        commits.append(commit)
        claimed += commit.run.lease is not None
    return commits, impossible
