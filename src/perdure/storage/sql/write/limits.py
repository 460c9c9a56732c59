"""Limits as a claim meets them: locked, counted, and their gates opened.

A limit's row is locked first; who holds it is counted in a later statement, since one that locks
and counts would count in the past. Rows are locked once a transaction, in order of name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from perdure.core.limits.admission import Gate, LimitScope, Rule, Standing
from perdure.core.limits.rates import Pace, full_at
from perdure.storage.sql import rows
from perdure.storage.sql.read.runs import keys_of, moment_of
from perdure.storage.sql.rows import RESERVED, SUSPECT, Dialect
from perdure.storage.sql.statements import Many, Operation, Rows, Step, last_trip, trip

UNREADABLE = "unreadable"
"""The gate of runs that this code cannot read: parked, reported, never retried in a loop."""

NO_LIMITS = (UNREADABLE, RESERVED, SUSPECT)
MICROSECOND = timedelta(microseconds=1)


class GatesOpened(msgspec.Struct, frozen=True):
    """How many runs were let in, and behind which gate to go on; none: that was the last."""

    runs: int
    after: tuple[str, str] | None


def lock_standing(
    environment: str, gates: Iterable[Gate], dialect: Dialect
) -> Operation[Standing | None]:
    """What holds at these gates, none if nothing does. The time is read after the lock."""
    wanted = sorted(set(gates))
    [locked] = yield trip(_limits("lock_limits", environment, wanted))
    if not locked:
        return None
    steps = _counts(environment, wanted, _rules(locked))
    return _standing(locked, (yield trip(*steps)), dialect)


def read_standing(environment: str, gates: Sequence[Gate], dialect: Dialect) -> Operation[Standing]:
    """The same without a lock: to tell, not to judge."""
    [found] = yield trip(_limits("read_standing", environment, gates))
    steps = _counts(environment, sorted(gates), _rules(found))
    return _standing(found, (yield last_trip(*steps)), dialect)


def _limits(query: str, environment: str, gates: Sequence[Gate]) -> Step:
    names = sorted({(gate.scope.value, gate.name) for gate in gates})
    wanted = rows.json_list([{"scope": scope, "name": name} for scope, name in names])
    return Step(query, {"environment": environment, "wanted": wanted})


def _rules(found: Rows) -> dict[tuple[LimitScope, str], Rule]:
    return {(LimitScope(scope), name): make_rule(*obeyed) for scope, name, *obeyed, _ in found}


def make_rule(max_leases: int | None, paused: object, interval: int | None, burst: int) -> Rule:
    """What claims obey of a limit, as its columns have it."""
    return Rule(
        max_leases=max_leases,
        pace=None if interval is None else Pace(interval * MICROSECOND, burst),
        is_paused=bool(paused),
    )


def _counts(
    environment: str, gates: Sequence[Gate], rules: Mapping[tuple[LimitScope, str], Rule]
) -> list[Step]:
    """Only what somebody asks for is counted and looked up."""
    known = [(gate, rules[gate.scope, gate.name]) for gate in gates if _known(gate, rules)]
    counted = [
        {"scope": gate.scope.value, "name": gate.name, "key": gate.key}
        for gate, rule in known
        if rule.max_leases is not None
    ]
    keys = [
        {"task": gate.name, "key": gate.key}
        for gate, rule in known
        if rule.pace is not None and gate.scope is LimitScope.KEY
    ]
    scope = {"environment": environment}
    steps = [Step("count_holders", scope | {"wanted": rows.json_list(counted)})]
    if keys:
        steps.append(Step("read_buckets", scope | {"wanted": rows.json_list(keys)}))
    return [*steps, Step("read_time")]


def _known(gate: Gate, rules: Mapping[tuple[LimitScope, str], Rule]) -> bool:
    return (gate.scope, gate.name) in rules


def _standing(found: Rows, answers: list[Rows], dialect: Dialect) -> Standing:
    counted, *buckets, [[now]] = answers
    opens = {(LimitScope(row[0]), row[1], ""): dialect.moment(row[6]) for row in found}
    for task, key, opens_at in buckets[0] if buckets else ():
        opens[LimitScope.KEY, task, key] = dialect.moment(opens_at)
    return Standing(
        rules=_rules(found),
        holders={Gate(LimitScope(s), name, key): count for s, name, key, count in counted},
        buckets={Gate(*place): opens_at for place, opens_at in opens.items() if opens_at},
        now=moment_of(now, dialect),
    )


def token_writes(
    environment: str,
    taken: Mapping[Gate, datetime],
    waited: Iterable[Gate],
    standing: Standing,
    dialect: Dialect,
) -> tuple[Many, Many]:
    """What is left in the buckets, and whether runs wait behind those of single keys."""
    limits: list[rows.Fields] = []
    keys: list[rows.Fields] = []
    for gate in sorted({*taken, *waited}):
        opens_at, rule = taken.get(gate) or standing.buckets.get(gate), standing.rule(gate)
        if rule is None or rule.pace is None or opens_at is None:
            continue
        fields: rows.Fields = {"environment": environment, "opens_at": dialect.instant(opens_at)}
        if gate.scope is not LimitScope.KEY:
            limits.append(fields | {"scope": gate.scope.value, "name": gate.name})
            continue
        full = dialect.instant(full_at(opens_at, rule.pace))
        place = {"task": gate.name, "key": gate.key, "gate": str(gate)}
        keys.append(fields | place | {"full_at": full})
    return Many("take_tokens", limits), Many("put_buckets", keys)


def open_gates(
    after: tuple[str, str] | None, limit: int, dialect: Dialect
) -> Operation[GatesOpened]:
    """Let as many runs back into the queue as each of the next gates has room for."""
    environment, gate = after or ("", "")
    page = {"after_environment": environment, "after_gate": gate, "limit": limit}
    [found] = yield trip(Step("read_gates", page))
    environments: dict[str, list[Gate]] = {}
    for environment, name in found:
        if name not in NO_LIMITS:
            environments.setdefault(environment, []).append(Gate.parse(name))
    steps: list[Step] = []
    for environment in sorted(environments):
        gates = environments[environment]
        standing = yield from lock_standing(environment, gates, dialect)
        steps += _openings(environment, gates, standing, limit)
    let_in = yield last_trip(*steps)
    more = (found[-1][0], found[-1][1]) if len(found) == limit else None
    return GatesOpened(sum(len(runs) for runs in let_in), more)


def wake_keys(
    environment: str, tasks: Sequence[str], limit: int, dialect: Dialect
) -> Operation[None]:
    """Let in as many runs as there are tokens for the keys that they wait for."""
    wanted = {"environment": environment, "tasks": rows.json_list(tasks), "limit": limit}
    [found] = yield trip(Step("waking_keys", wanted))
    gates = [Gate(LimitScope.KEY, task, key) for task, key in found]
    standing = yield from lock_standing(environment, gates, dialect)
    woken = [
        {"environment": environment, "task": gate.name, "key": gate.key} for gate in sorted(gates)
    ]
    openings = _openings(environment, gates, standing, limit)
    yield last_trip(*openings, Many("wake_buckets", woken), Step("read_time"))


def _openings(
    environment: str, gates: Sequence[Gate], standing: Standing | None, limit: int
) -> list[Step]:
    """A gate whose limit is gone stands open."""
    room = {
        gate: limit if standing is None else standing.room(gate, limit) for gate in sorted(gates)
    }
    return [
        Step("open_gate", {"environment": environment, "gate": str(gate), "room": places})
        for gate, places in room.items()
        if places > 0
    ]


def gates_of_runs(run_ids: Sequence[str], dialect: Dialect) -> Operation[dict[str, str]]:
    [found] = yield last_trip(Step("read_gates_of_runs", {"ids": keys_of(run_ids, dialect)}))
    return {dialect.run_id(run_id): gate for run_id, gate in found}


def prune_buckets(limit: int) -> Operation[None]:
    yield last_trip(Step("delete_full_buckets", {"limit": limit}))
