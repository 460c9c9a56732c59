"""Runs behind limits of every kind, and two ways to see whether one was ever exceeded."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate

import psycopg

from perdure.core.limits.admission import Gate, LimitScope, held_gates
from perdure.core.limits.settings import Limit
from perdure.core.run.commit import Commit
from perdure.core.run.events import Event
from perdure.core.run.reducer import project
from perdure.core.run.run import Run, Source, SourceType
from storage_kit import a_limit, new_run

SIZES = (1, 2, 7)
KEYS = 20

LIMITS = [a_limit(scope, f"{scope.value}-{size}", size) for scope in LimitScope for size in SIZES]
TASKS = ("free", *(f"{scope}-{size}" for scope in ("task", "key") for size in SIZES))


def limited_runs(each: int) -> list[Commit]:
    """As many runs for each limit, all of them due, one limit after the other in turns."""
    return [_behind(limit, number) for number in range(each) for limit in LIMITS]


def _behind(limit: Limit, number: int) -> Commit:
    match limit.scope:
        case LimitScope.QUEUE:
            return new_run(task="free", queue=limit.name)
        case LimitScope.TASK:
            return new_run(task=limit.name)
        case LimitScope.KEY:
            return new_run(task=limit.name, concurrency_key=f"key-{number % KEYS}")
        case LimitScope.SCHEDULE:
            source = Source(type=SourceType.SCHEDULE, schedule_id=limit.name)
            return new_run(task="free", source=source)


_HOLDERS = """
    SELECT 'queue', queue, '', count(*) FROM perdure_runs
     WHERE lease_token IS NOT NULL GROUP BY queue
    UNION ALL
    SELECT 'task', task, '', count(*) FROM perdure_runs
     WHERE lease_token IS NOT NULL GROUP BY task
    UNION ALL
    SELECT 'key', task, concurrency_key, count(*) FROM perdure_runs
     WHERE lease_token IS NOT NULL AND concurrency_key IS NOT NULL GROUP BY task, concurrency_key
    UNION ALL
    SELECT 'schedule', schedule_id, '', count(*) FROM perdure_runs
     WHERE holds_slot AND schedule_id IS NOT NULL GROUP BY schedule_id
"""
_PARKED = "SELECT count(*) FROM perdure_runs WHERE gate IS NOT NULL"


class Watch:
    """A connection of its own that counts, in one snapshot, who holds what."""

    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._connection: sqlite3.Connection | psycopg.Connection
        if path != url:
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=60)
        else:
            self._connection = psycopg.connect(url, autocommit=True)

    def excess(self) -> list[str]:
        """Limits that are exceeded at this moment."""
        most = {(it.scope.value, it.name): it.max_leases or 0 for it in LIMITS}
        return [
            f"{scope} {name} {key}: {count}"
            for scope, name, key, count in self.holders()
            if count > most.get((scope, name), count)
        ]

    def holders(self) -> list[tuple[str, str, str, int]]:
        """Scope, name, key, and how many hold it."""
        return self._connection.execute(_HOLDERS).fetchall()

    def parked(self) -> int:
        [(count,)] = self._connection.execute(_PARKED).fetchall()
        return int(count)

    def close(self) -> None:
        self._connection.close()


def busiest(histories: Iterable[Sequence[Event]]) -> dict[Gate, int]:
    """For each gate, how many ever held it at once, as the histories tell it.

    An ending is stamped before it is stored, a claim once the limit is locked: intervals are
    never longer than the truth, so what overlaps here has really overlapped.
    """
    moves: dict[Gate, list[tuple[datetime, int]]] = defaultdict(list)
    for events in histories:
        run: Run | None = None
        for event in events:
            before, run = run, project(run, [event], 0 if run is None else run.sequence)
            for gate in held_gates(run) - held_gates(before):
                moves[gate].append((event.occurred_at, 1))
            for gate in held_gates(before) - held_gates(run):
                moves[gate].append((event.occurred_at, -1))
    return {
        gate: max(accumulate(change for _, change in sorted(steps)))
        for gate, steps in moves.items()
    }
