"""Whether limits, rates, pauses and turns hold: seen from above, and counted anew.

Only what is stored and what operators were told counts here; nothing of how claims decide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from perdure.core.limits.admission import LimitScope
from perdure.storage.sql.rows import SUSPECT
from simulation.database import LimitRow, RunRow
from simulation.notes import Notes

Place = tuple[str, str, str]
"""Scope, name and key."""

Rows = Mapping[str, RunRow]
Limits = Mapping[tuple[str, str], LimitRow]

STRANDED = 8_000_000
"""Longer than this, nobody waits behind an open gate: maintenance comes by every second."""


class FlowWatch:
    """Looks at each step that was stored."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._limits: Limits = {}
        self._starts: dict[Place, list[int]] = defaultdict(list)
        self._passed: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._open_since: dict[str, int] = {}
        self._suspects: set[str] = set()
        """Runs that have waited to be executed alone."""
        self.paused: set[str] = set()
        """Queues whose pause was acknowledged, and whose resumption nobody has asked for since."""
        self.overruled: dict[tuple[str, str, str], object] = {}
        """What operators were told that holds now."""

    def look(self, before: Rows, rows: Rows, limits: Limits, now: int) -> None:
        started = [
            row
            for row in rows.values()
            if row.lease_token and (old := before.get(row.id)) and not old.lease_token
        ]
        self._forget_changed(limits)
        self._limits = limits
        self._check_operators(limits)
        self._check_pauses(started)
        self._check_holders(before, rows)
        self._check_rates(before, started, now)
        self._check_turns(before, rows, started, now)

    def _forget_changed(self, limits: Limits) -> None:
        """From another rate on, only its own starts count; and a fair queue begins anew."""
        for place, row in limits.items():
            known = self._limits.get(place)
            if known is None or _rate(known) != _rate(row):
                for gate in [gate for gate in self._starts if gate[:2] == place]:
                    del self._starts[gate]
            if known != row:
                for waiting in [it for it in self._passed if it[0] == place[1]]:
                    del self._passed[waiting]

    def _check_operators(self, limits: Limits) -> None:
        for (scope, name, field), value in self.overruled.items():
            row = limits.get((scope, name))
            stored = None if row is None else getattr(row, field)
            if stored != value:
                self._notes.fail(
                    f"{scope} {name}: an operator set {field} to {value}, not {stored}"
                )

    def _check_pauses(self, started: list[RunRow]) -> None:
        for row in started:
            if row.queue in self.paused:
                self._notes.fail(f"run {row.id}: claimed though queue {row.queue} is paused")

    def _check_holders(self, before: Rows, rows: Rows) -> None:
        """More than allowed is allowed only where the limit was lowered since."""
        held, were = _holders(rows), _holders(before)
        for (scope, name, key), count in held.items():
            limit = self._limits.get((scope, name))
            most = None if limit is None else limit.max_leases
            if most is not None and count > max(most, were[scope, name, key]):
                self._notes.fail(f"{count} leases of {scope} {name} {key}, at most {most} allowed")

    def _check_rates(self, before: Rows, started: list[RunRow], now: int) -> None:
        for row in started:
            for gate in _gates(row):
                limit = self._limits.get(gate[:2])
                if limit is None or limit.rate_interval is None or limit.rate_burst is None:
                    continue
                starts = self._starts[gate]
                if starts and (before[row.id].claimable_at or 0) < starts[-1] < now:
                    self._notes.sometimes("rate waited for")
                starts.append(now)
                for index, began in enumerate(starts):
                    gained = (now - began) / limit.rate_interval
                    if len(starts) - index > limit.rate_burst + gained:
                        self._notes.fail(f"{gate} started more than its rate allows: {starts}")
                        return

    def _check_turns(self, before: Rows, rows: Rows, started: list[RunRow], now: int) -> None:
        """While the first run of a key waits, no other key of a fair queue starts twice. Who waits
        for room or tokens besides keeps its turn, and is not counted."""
        held = _holders(before)
        served: dict[str, Counter[str]] = defaultdict(Counter)
        for row in started:
            served[row.queue][row.concurrency_key or ""] += 1
        for queue in [name for (scope, name), row in self._limits.items() if row.fair]:
            waiting = {
                row.concurrency_key or ""
                for row in before.values()
                if row.queue == queue
                and _waits(row, now)
                and _same(row, rows.get(row.id))
                and not self._is_shut(row, held, now)
            }
            touched = {
                row.concurrency_key or ""
                for row in before.values()
                if row.queue == queue and not _same(row, rows.get(row.id))
            }
            self._count_turns(queue, waiting - touched, served[queue])

    def _count_turns(self, queue: str, waiting: set[str], served: Counter[str]) -> None:
        for place in [it for it in self._passed if it[0] == queue and it[1] not in waiting]:
            del self._passed[place]
        for key in sorted(waiting):
            passed = self._passed[queue, key]
            passed.update(served)
            if passed:
                self._notes.sometimes("a key waited for its turn")
            twice = [other for other, count in sorted(passed.items()) if count > 1]
            if twice:
                self._notes.fail(f"queue {queue}: {twice} started twice while {key!r} waited")

    def check_parked(self, rows: Rows, now: int) -> None:
        held = _holders(rows)
        self._suspects |= {row.id for row in rows.values() if row.gate == SUSPECT}
        alone = any(rows[it].lease_token for it in self._suspects if it in rows)
        for row in rows.values():
            waits_for_another = row.gate == "reserved" or (row.gate == SUSPECT and alone)
            if row.gate is None or waits_for_another or self._is_shut(row, held, now):
                self._open_since.pop(row.id, None)
                continue
            since = self._open_since.setdefault(row.id, now)
            if now - since > STRANDED:
                self._notes.fail(f"run {row.id}: stranded behind {row.gate}, which is open")

    def _is_shut(self, row: RunRow, held: Counter[Place], now: int) -> bool:
        slot = None if row.holds_slot else _slot(row)
        if slot is not None and self._is_full(slot, held):
            return True
        return any(self._is_full(gate, held) or self._is_dry(gate, now) for gate in _gates(row))

    def _is_full(self, gate: Place, held: Counter[Place]) -> bool:
        limit = self._limits.get(gate[:2])
        if limit is None:
            return False
        return bool(limit.paused) or (
            limit.max_leases is not None and held[gate] >= limit.max_leases
        )

    def _is_dry(self, gate: Place, now: int) -> bool:
        """Perhaps: it is not for sure while it may not be full again."""
        limit, starts = self._limits.get(gate[:2]), self._starts.get(gate)
        if limit is None or limit.rate_interval is None or limit.rate_burst is None or not starts:
            return False
        return now - starts[-1] < limit.rate_interval * limit.rate_burst


def _rate(row: LimitRow) -> tuple[int | None, int | None]:
    return row.rate_interval, row.rate_burst


def _slot(row: RunRow) -> Place | None:
    return None if row.schedule_id is None else (LimitScope.SCHEDULE, row.schedule_id, "")


def _gates(row: RunRow) -> Iterator[Place]:
    yield LimitScope.QUEUE, row.queue, ""
    yield LimitScope.TASK, row.task, ""
    if row.concurrency_key is not None:
        yield LimitScope.KEY, row.task, row.concurrency_key


def _holders(rows: Rows) -> Counter[Place]:
    held = Counter(
        gate
        for row in rows.values()
        if row.lease_token is not None or row.gate == "reserved"
        for gate in _gates(row)
    )
    return held + Counter(slot for row in rows.values() if row.holds_slot and (slot := _slot(row)))


def _waits(row: RunRow, now: int) -> bool:
    return row.claimable_at is not None and row.claimable_at <= now and row.gate is None


def _same(row: RunRow, after: RunRow | None) -> bool:
    return after is not None and (after.sequence, after.gate) == (row.sequence, row.gate)
