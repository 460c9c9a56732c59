"""Runs that wait for each other: a handler awaits the result of a run that needs its place."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.core.run.run import Run

Holders = frozenset[str]


class Waits(msgspec.Struct, frozen=True):
    """Which run waits for which. `awaits`: running runs, each with a run whose result its handler
    awaits. `held_by`: runs that have not begun, each with the full sets of places that it needs:
    by which runs each set is held."""

    awaits: Mapping[str, str]
    held_by: Mapping[str, tuple[Holders, ...]]


class WaitCycle(msgspec.Struct, frozen=True):
    """Runs of which each waits for the next, and the last for the first."""

    runs: tuple[Run, ...]


def find_stuck(waits: Waits) -> frozenset[str]:
    """Return the runs that cannot go on unless another run of this set does."""
    stuck = frozenset(waits.awaits.keys() | waits.held_by.keys())
    while True:
        kept = frozenset(it for it in stuck if _next(it, waits, stuck) is not None)
        if kept == stuck:
            return stuck
        stuck = kept


def find_cycle(run_id: str, waits: Waits, stuck: frozenset[str]) -> tuple[str, ...]:
    """Return the cycle that keeps a stuck run: each run waits for the next, the last for the
    first, which awaits a result. Return nothing for a run that is not stuck."""
    path: list[str] = []
    current: str | None = run_id if run_id in stuck else None
    while current is not None and current not in path:
        path.append(current)
        current = _next(current, waits, stuck)
    if current is None:
        return ()
    cycle = path[path.index(current) :]
    first = next(number for number, it in enumerate(cycle) if it in waits.awaits)
    return tuple(cycle[first:] + cycle[:first])


def describe_cycle(cycle: WaitCycle) -> str:
    """Return who waits for whom, as a clause."""
    following = (*cycle.runs[1:], cycle.runs[0])
    return ", and ".join(
        f"{run.id} ({run.task}) awaits the result of {other.id}"
        if run.lease is not None
        else f"{run.id} ({run.task}) needs a place that {other.id} holds"
        for run, other in zip(cycle.runs, following, strict=True)
    )


def _next(run_id: str, waits: Waits, stuck: frozenset[str]) -> str | None:
    """Return a stuck run that this one waits for."""
    awaited = waits.awaits.get(run_id)
    if awaited is not None:
        return awaited if awaited in stuck else None
    for holders in waits.held_by.get(run_id, ()):
        if holders and holders <= stuck:
            return min(holders)
    return None
