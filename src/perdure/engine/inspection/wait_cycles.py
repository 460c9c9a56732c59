"""Finds runs that wait for each other, from what workers say that their handlers await."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from perdure.core.explain.wait_cycles import Holders, WaitCycle, Waits, find_cycle, find_stuck
from perdure.core.explain.why import SeenWorker
from perdure.core.limits.admission import gates_of, needed_gates
from perdure.core.run.run import Run
from perdure.storage.contract.storage import Storage

MAX_AWAITS = 1000
"""Awaiting runs of all workers that are looked at."""
MAX_GATED = 20
"""Awaited runs whose limits are read."""
MAX_HOLDERS = 100


class WaitReader:
    """The runs of one environment that wait for each other, as workers last said."""

    def __init__(self, storage: Storage, environment: str, workers: Sequence[SeenWorker]) -> None:
        self._storage = storage
        self._environment = environment
        self._workers = [worker for worker in workers if worker.is_live]
        self._runs: dict[str, Run] = {}

    async def cycle_of(self, run: Run) -> WaitCycle | None:
        """Return the cycle that keeps a run from going on."""
        waits = await self._read(None if run.holds_room else run)
        found = find_cycle(run.id, waits, find_stuck(waits))
        return self._cycle(found) if found else None

    async def cycles(self) -> list[WaitCycle]:
        """Return each cycle once."""
        waits = await self._read(None)
        stuck = find_stuck(waits)
        found = [find_cycle(run_id, waits, stuck) for run_id in sorted(stuck)]
        distinct = {frozenset(run_ids): run_ids for run_ids in found}
        return [self._cycle(run_ids) for run_ids in distinct.values()]

    def _cycle(self, run_ids: Sequence[str]) -> WaitCycle:
        return WaitCycle(tuple(self._runs[run_id] for run_id in run_ids))

    async def _read(self, run: Run | None) -> Waits:
        said = (pair for worker in self._workers for pair in worker.awaiting.items())
        awaits = dict(islice(said, MAX_AWAITS))
        if not awaits:
            return Waits({}, {})
        self._runs = await self._own([*awaits, *awaits.values()])
        awaits = {one: other for one, other in awaits.items() if self._is_waiting(one, other)}
        waiting = {it: self._runs[it] for it in awaits.values() if self._is_claimable(it)}
        if run is not None and run.claimable_at is not None:
            waiting[run.id] = self._runs[run.id] = run
        return Waits(awaits, await self._held_by(list(waiting.values()), awaits))

    async def _own(self, run_ids: Sequence[str]) -> dict[str, Run]:
        found = await self._storage.get(list(dict.fromkeys(run_ids)))
        own = self._environment
        return {run_id: run for run_id, run in found.items() if run.environment == own}

    def _is_waiting(self, run_id: str, awaited: str) -> bool:
        """Whether it still is what a worker said: neither of the two has ended since."""
        run, other = self._runs.get(run_id), self._runs.get(awaited)
        is_held = run is not None and run.lease is not None
        return is_held and other is not None and not other.is_terminal

    def _is_claimable(self, run_id: str) -> bool:
        return self._runs[run_id].claimable_at is not None

    async def _held_by(
        self, waiting: Sequence[Run], awaits: Mapping[str, str]
    ) -> dict[str, tuple[Holders, ...]]:
        held = {run.id: self._places(run, awaits) for run in waiting}
        for run in [run for run in waiting if not held[run.id]][:MAX_GATED]:
            held[run.id] = await self._gates(run)
        return held

    def _places(self, run: Run, awaits: Mapping[str, str]) -> tuple[Holders, ...]:
        """Return the runs that hold all places of the workers that could take the run, if each of
        these awaits a result."""
        able = [it for it in self._workers if it.is_staying and it.could_take(run)]
        waiting = [{run_id for run_id in it.awaiting if run_id in awaits} for it in able]
        full = [len(ids) >= it.concurrency for ids, it in zip(waiting, able, strict=True)]
        return (frozenset().union(*waiting),) if able and all(full) else ()

    async def _gates(self, run: Run) -> tuple[Holders, ...]:
        """Return the holders of each limit that is full."""
        standing = await self._storage.standing(self._environment, gates_of(run))
        found = []
        for gate in needed_gates(run):
            if standing.is_full(gate):
                ids = await self._storage.holders(self._environment, gate, limit=MAX_HOLDERS)
                if len(ids) >= standing.holders.get(gate, 0):
                    found.append(frozenset(ids))
        return tuple(found)
