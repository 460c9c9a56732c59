"""Makes a scenario's troubles happen: crashes, pauses, outages, clock jumps, shutdowns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random  # seeded
from typing import TYPE_CHECKING

from simulation.workload import TTL

if TYPE_CHECKING:
    from simulation.world import Node, World


STEPS_S = 250.0, 290.0
"""By so many seconds the clock is set back: longer than runs may take to end."""


class Nemesis:
    """Plans everything at the beginning; what would come after the healing does not happen."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._crashes: set[int] = set()
        self._resumes: list[Callable[[], None]] = []

    def begin(self) -> None:
        chance, span = self._chance, self._world.scenario.span
        troubles = self._world.scenario.troubles
        for name, action in (
            ("pause", self._pause),
            ("forget", self._forget),
            ("jump", self._jump),
            ("shutdown", self._shut_down),
        ):
            for _ in range(chance.randint(1, 3) if name in troubles else 0):
                self._world.loop.call_later(
                    chance.uniform(0.0, span * 0.8), self._unless_healed, action
                )
        self._world.server.on_served = self._on_served
        if "outage" in troubles:
            self._world.loop.call_later(chance.uniform(0.0, span / 2), self._outage)
        if "read only" in troubles:
            self._world.loop.call_later(chance.uniform(0.0, span / 2), self._read_only)
        if "set back" in troubles:
            other = Random(f"{self._world.scenario.seed} step")
            step = timedelta(seconds=other.uniform(*STEPS_S))
            self._world.later(other.uniform(0.0, span / 2), self._set_back, step)
        if "crash" in troubles:
            # At a step, not at a time: between any two awaits.
            most, within = self._world.scenario.crashes
            self._crashes = {chance.randint(1, within) for _ in range(chance.randint(1, most))}
            self._also_crash()

    def _also_crash(self) -> None:
        watch = self._world.loop.on_step

        def on_step(step: int) -> None:
            if step in self._crashes and not self._world.is_healed:
                self._world.crash(self._victim("worker", "keeper", "worker", "client", "scheduler"))
            watch(step)

        self._world.loop.on_step = on_step

    def _unless_healed(self, action: Callable[[], None]) -> None:
        if not self._world.is_healed:
            action()

    def _victim(self, *kinds: str) -> Node:
        """One of a kind; of workers rather one that has something to lose."""
        there = {node.name.rstrip("0123456789") for node in self._world.nodes}
        kind = self._chance.choice([kind for kind in kinds if kind in there])
        nodes = [node for node in self._world.nodes if node.name.startswith(kind)]
        active = self._world.ledger.active
        busy = [node for node in nodes if node.process is not None and active(node.process)]
        return self._chance.choice(busy or nodes)

    def _pause(self) -> None:
        node = self._victim("worker", "worker", "worker", "keeper", "client", "scheduler")
        process = node.process
        if process is None or process.is_paused:
            return
        if node.name.startswith("worker") and not self._world.ledger.active(process):
            self._world.later(0.3, self._unless_healed, self._pause)
            return
        self._world.notes.say(process.name, "pauses")
        process.pause()

        def resume() -> None:
            if process.is_paused:
                self._world.notes.say(process.name, "goes on")
                process.resume()

        self._resumes.append(resume)
        self._world.loop.call_later(self._chance.uniform(0.7, 3.0) * TTL, resume)

    def _forget(self) -> None:
        """A worker's renewals fail for a while, and nothing else does."""
        node = self._victim("worker")
        process = node.process
        if process is None or not self._world.ledger.active(process):
            self._world.later(0.3, self._unless_healed, self._forget)
            return
        self._world.notes.say(process.name, "forgets to renew")
        process.is_forgetful = True

        def remember() -> None:
            process.is_forgetful = False

        self._world.loop.call_later(self._chance.uniform(0.5, 3.0) * TTL, remember)

    def _on_served(self, name: str) -> None:
        """Who was paused goes on, just when maintenance has looked for lost leases."""
        if name != "attention" or not self._resumes or not self._world.oracle.any_expired:
            return
        if self._chance.random() < 0.5:
            self._resumes.pop()()

    def _jump(self) -> None:
        node = self._chance.choice(self._world.nodes)
        step = self._chance.uniform(-10.0, 10.0)
        self._world.notes.say(node.name, f"clock jumps by {step:+.1f} s")
        node.clock.skew += step

    def _set_back(self, step: timedelta) -> None:
        """Set the clock of the database's machine back: of an embedded file, the only clock."""
        self._world.notes.say("server", f"its clock is set back by {step}")
        self._world.notes.sometimes("clock of the database set back")
        self._world.server.database.clock.set_back(step)

    def _shut_down(self) -> None:
        node = self._victim("worker")
        if node.process is not None:
            node.stop.set()

    def _outage(self) -> None:
        server, notes = self._world.server, self._world.notes
        if self._world.is_healed:
            return
        if not self._world.oracle.any_leased:
            self._world.later(0.2, self._outage)
            return
        notes.say("server", "goes down")
        server.is_down = True
        self._recover_later()

    def _read_only(self) -> None:
        """Let reads succeed and refuse writes, so that no lease can be renewed."""
        if self._world.is_healed:
            return
        if not self._world.oracle.any_leased:
            self._world.later(0.2, self._read_only)
            return
        self._world.notes.say("server", "becomes read-only")
        self._world.server.is_read_only = True
        self._recover_later()

    def _recover_later(self) -> None:
        def recover() -> None:
            self._world.oracle.remember_expired()
            self._world.server.recover()

        self._world.loop.call_later(self._chance.uniform(0.5, 2.5) * TTL, recover)
