"""Hints between the processes of a simulation."""

from __future__ import annotations

from collections.abc import Callable

from perdure.storage.contract.wakeups import HintTransport
from simulation.faults import Faults
from simulation.loop import Process, SimulationLoop
from simulation.notes import Notes


class Network:
    """Carries hints between processes, badly."""

    def __init__(self, loop: SimulationLoop, faults: Faults, notes: Notes) -> None:
        self._loop = loop
        self._faults = faults
        self._notes = notes
        self._listeners: list[tuple[Process, Callable[[frozenset[str] | None], None]]] = []

    def transport(self, process: Process) -> HintTransport | None:
        return _Transport(self, process) if self._faults.plan.hints else None

    def send(self, sender: Process, topics: frozenset[str]) -> None:
        for process, tell in self._listeners:
            if process is sender or process.is_dead:
                continue
            delays = self._faults.hint_delays()
            if len(delays) > 1:
                self._notes.sometimes("duplicate hint")
            for delay in delays:
                self._loop.call_later(delay, tell, topics, context=process.context)

    async def listen(self, process: Process, tell: Callable[[frozenset[str] | None], None]) -> None:
        self._listeners.append((process, tell))
        tell(None)
        await self._loop.create_future()


class _Transport:
    rides = False

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    async def notify(self, topics: frozenset[str]) -> None:
        self._network.send(self._process, topics)

    async def listen(self, on_topics: Callable[[frozenset[str] | None], None]) -> None:
        await self._network.listen(self._process, on_topics)
