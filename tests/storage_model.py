"""A dict that behaves like a storage: the oracle, not an adapter.

It takes over what only storage can know (which due runs were picked, the storage's time) from
the adapter's answers, checks that they were allowed, and predicts all the rest.
"""

from __future__ import annotations

import math
from collections import Counter

from msgspec.structs import replace

from perdure.core.decide import Claim, decide_claim
from perdure.core.limits.admission import Gate, LimitScope, gates_of
from perdure.core.run.commit import Commit
from perdure.core.run.effects import Key
from perdure.core.run.events import Event
from perdure.core.run.reducer import project
from perdure.core.run.run import Run
from perdure.errors import SequenceConflict
from perdure.storage.contract.runs import (
    Claimed,
    ClaimRequest,
    Committed,
    Existing,
    Outcome,
    Renewed,
)


class Model:
    """Runs, their events, the owners of keys, and limits."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.events: dict[str, list[Event]] = {}
        self.keys: dict[Key, str] = {}
        self.limits: dict[tuple[LimitScope, str], int] = {}
        self.bursts: dict[tuple[LimitScope, str], int] = {}
        self.starts: Counter[Gate] = Counter()
        self.paused: set[str] = set()
        self.commit_ids: set[str] = set()

    def commit(self, item: Commit) -> Outcome:
        """What storage must answer to an item that does not contradict itself."""
        run, stored = item.run, self.runs.get(item.run.id)
        if item.commit_id in self.commit_ids:
            return Committed(run.id, run.sequence)
        if (0 if stored is None else stored.sequence) != item.expected_sequence:
            actual = None if stored is None else stored.sequence
            return SequenceConflict(run.id, item.expected_sequence, actual)
        for key in item.effects.keys_taken:
            if key in self.keys:
                owner = self.keys[key]
                same = self.runs[owner].payload_json == run.payload_json
                return Existing(owner, key, same)
        self._store(item)
        return Committed(run.id, run.sequence)

    def _store(self, item: Commit) -> None:
        before, after = self.runs.get(item.run.id), item.run
        if before and before.lease and after.lease:
            # Whatever others commit, the stored expiry of a lease only grows.
            expiry = max(before.lease.expires_at, after.lease.expires_at)
            after = replace(after, lease=after.lease.renewed_until(expiry))
        self.runs[after.id] = after
        self.events.setdefault(after.id, []).extend(item.events)
        self.commit_ids.add(item.commit_id)
        self.keys |= dict.fromkeys(item.effects.keys_taken, after.id)
        for freed in item.effects.keys_freed:
            if freed.free_at <= after.updated_at:
                self.keys.pop(freed.key, None)

    def claim(self, request: ClaimRequest, answer: Claimed) -> None:
        """Check that the answer was allowed, and take it over."""
        due = {
            run.id: run
            for run in self.runs.values()
            if run.task in request.tasks
            and run.claimable_at is not None
            and run.claimable_at <= answer.now
            and (run.id in request.run_ids if request.run_ids else not run.is_suspect)
        }
        assert {run.id for run in answer.runs} <= set(due)
        for place, claimed in enumerate(answer.runs):
            self._take(due[claimed.id], claimed, request, place, answer)
        self._check_limits()
        left = [run for run in due.values() if self.runs[run.id] is run]
        if len(answer.runs) < len(request.tokens):
            assert not [run for run in left if self._has_room(run)], "a due run was passed over"

    def _take(
        self, run: Run, claimed: Run, request: ClaimRequest, place: int, answer: Claimed
    ) -> None:
        offer = Claim(
            token=request.tokens[place],
            worker_id=request.worker_id,
            lease_ttl=request.lease_ttl,
            start=place < request.start,
        )
        assert claimed.lease is not None
        assert claimed.lease.claimed_at <= answer.now  # earlier if it had to look again
        events = decide_claim(run, offer, claimed.lease.claimed_at)
        assert project(run, events, run.sequence) == claimed
        self.runs[run.id] = claimed
        self.events[run.id].extend(events)
        assert run.queue not in self.paused
        for gate in gates_of(run):
            self.starts[gate] += 1
            assert self.starts[gate] <= self._most_starts(gate), gate

    def renew(self, answer: Renewed) -> None:
        for run_id, expires_at in answer.renewed.items():
            run = self.runs[run_id]
            assert run.lease is not None
            assert expires_at >= run.lease.expires_at
            self.runs[run_id] = replace(run, lease=run.lease.renewed_until(expires_at))

    def _holders(self) -> Counter[Gate]:
        return Counter(gate for run in self.runs.values() for gate in gates_of(run) if run.lease)

    def _check_limits(self) -> None:
        for gate, count in self._holders().items():
            assert count <= self.limits.get((gate.scope, gate.name), count), gate

    def _has_room(self, run: Run) -> bool:
        holders = self._holders()
        return run.queue not in self.paused and all(
            holders[gate] < self.limits.get((gate.scope, gate.name), holders[gate] + 1)
            and self.starts[gate] < self._most_starts(gate)
            for gate in gates_of(run)
        )

    def _most_starts(self, gate: Gate) -> float:
        """Rates of the tests gain nothing while one runs: only the burst counts."""
        return self.bursts.get((gate.scope, gate.name), math.inf)

    def pace(self, scope: LimitScope, name: str, burst: int | None) -> None:
        """Another rate, or none: with a full bucket."""
        self.bursts.pop((scope, name), None)
        for gate in [gate for gate in self.starts if (gate.scope, gate.name) == (scope, name)]:
            del self.starts[gate]
        if burst is not None:
            self.bursts[scope, name] = burst
