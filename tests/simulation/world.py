"""One scenario: nodes that run the real runtime, work for them, and whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random  # seeded
from typing import Any

from msgspec.structs import replace

from perdure.app.app import App
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.client.handle import RunHandle
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.ids import Ids
from perdure.errors import PerdureError, StorageUnavailable
from perdure.storage import Storage
from simulation.database import Database
from simulation.faults import Faults, FaultyStorage, Server
from simulation.ledger import Ledger
from simulation.loop import Process, SimulationLoop, VirtualClock, current_process
from simulation.nemesis import Nemesis
from simulation.network import Network
from simulation.notes import Notes
from simulation.oracle import Oracle
from simulation.scenario import Scenario
from simulation.schedules import ScheduleMeddler
from simulation.steering import Operator, Pusher, Steerer
from simulation.workload import (
    DEFAULTS,
    ClientNode,
    Item,
    Script,
    tasks_of,
)

MOST_STEPS_AT_ONCE = 5_000
UNKILLED = ("operator", "pusher", "meddler")
"""What they were told is checked: they must live to be told."""
SETTLING = 240.0
"""Within how many seconds after the last fault everything must have ended."""
IDLING = 20.0
"""Within how many seconds after the end of the last run every worker must be idle."""


class SimulatedApp(App):
    """The real app, but for where its storage comes from."""

    def __init__(self, storage: Callable[[], Storage], version: int | None, **options: Any) -> None:
        super().__init__(**options)
        self._make_storage = storage
        self.tasks = tasks_of(self, version)

    def open_storage(self) -> Storage:
        return self._make_storage()


Main = Callable[[Process, SimulatedApp], Awaitable[None]]


class Node:
    """A machine on which one process at a time runs, again and again."""

    def __init__(self, name: str, main: Main, clock: VirtualClock) -> None:
        self.name = name
        self.main = main
        self.clock = clock
        self.starts = 0
        self.process: Process | None = None
        self.stop: asyncio.Event = asyncio.Event()


class World:
    """Everything of one scenario."""

    def __init__(self, scenario: Scenario, database: Database) -> None:
        self.scenario = scenario
        self._context = contextvars.copy_context()
        self.loop = SimulationLoop(Random(f"{scenario.seed} schedule"), scenario.haste)
        self.notes = Notes(self.loop.time)
        self.notes.on_problem = self.loop.stop
        database.reset(self.loop)
        heed = DEFAULTS.renewal_interval.total_seconds() + 1.0
        self.ledger = Ledger(
            self.loop.time,
            self.notes,
            lease_ttl=DEFAULTS.lease_ttl,
            heed=heed,
            is_brisk=not scenario.haste and "pause" not in scenario.troubles,
        )
        self.oracle = self.make_oracle(database)
        self.faults = Faults(
            scenario.faults,
            Random(f"{scenario.seed} faults"),
            Random(f"{scenario.seed} silence"),
        )
        self.server = Server(self.loop, database, self.faults, self.notes)
        self.server.oracle = self.oracle
        self.server.kill = self._kill
        self.ledger.last_outage = lambda: self.server.last_outage
        self.ledger.interrupted = self.server.interrupted
        self.network = Network(self.loop, self.faults, self.notes)
        self._chance = Random(f"{scenario.seed} world")
        self._triggered: dict[str, Item] = {}
        self._hosts: dict[Process, Any] = {}
        self._moving = (0, 0)
        self._clients_left = {f"client{i}" for i in range(len(scenario.clients))}
        self._clients_left |= {"meddler"} if scenario.meddles_with_schedules else set()
        self._healed_at: float | None = None
        self._idle_since: float | None = None
        self.nodes = self._make_nodes()

    def make_oracle(self, database: Database) -> Oracle:
        return Oracle(database, self.ledger, self.notes)

    def run(self) -> Notes:
        """Until everything has ended, or nothing more can be expected, or something is wrong."""
        self.loop.on_step = self._on_step
        self.loop.call_soon(self._begin)
        self.loop.run_forever()
        if self.notes.problem is None:
            self._check_the_end()
        lost = [f"{task.exception()!r}" for task in self.loop.tasks if _died_unseen(task)]
        self.loop.end()
        for error in self.loop.errors + lost:
            self.notes.fail(f"an error nobody handled: {error}")
        return self.notes

    # Nodes

    def _make_nodes(self) -> list[Node]:
        scenario = self.scenario
        nodes = [self._node(f"worker{i}", self._work) for i in range(scenario.workers)]
        nodes += [self._node(f"keeper{i}", self._keep) for i in range(scenario.keepers)]
        for index, items in enumerate(scenario.clients):
            left = list(items)

            async def ask(process: Process, app: SimulatedApp, left: list[Item] = left) -> None:
                await ClientNode(self, process, app, left).run()
                self._clients_left.discard(process.name.partition(".")[0])

            nodes.append(self._node(f"client{index}", ask))
        if scenario.meddles or scenario.steers:
            nodes.append(self._node("operator", self._meddle))
        nodes += [self._node(f"scheduler{i}", self._schedule) for i in range(scenario.schedulers)]
        if scenario.meddles_with_schedules:
            nodes.append(self._node("meddler", self._meddle_with_schedules))
        if scenario.pushes:
            nodes.append(self._node("pusher", self._push))
        return nodes

    def _node(self, name: str, main: Main) -> Node:
        chance = Random(f"{self.scenario.seed} {name}")
        skew, drift = self.scenario.clocks.get(name, (0.0, 0.0))
        return Node(name, main, VirtualClock(self.loop, chance, skew, drift))

    def _begin(self) -> None:
        for node in self.nodes:
            self.start(node)
        Nemesis(self, Random(f"{self.scenario.seed} nemesis")).begin()
        self.loop.call_later(self.scenario.span, self._heal)

    def start(self, node: Node) -> None:
        """A new process on this node, unless one runs."""
        if node.process is not None:
            return
        node.starts += 1
        process = Process(self.loop, f"{node.name}.{node.starts}")
        process.world = self  # type: ignore[attr-defined]  # for the handlers
        node.process = process
        node.stop = asyncio.Event()
        ids = Ids(Random(f"{self.scenario.seed} {process.name}").randbytes)
        transport = self.network.transport(process)
        app = SimulatedApp(
            lambda: FaultyStorage(self.server, process, transport),
            self.scenario.versions.get(node.name),
            url=DEFAULTS.url,
            defaults=self._defaults(),
            clock=node.clock,
            ids=ids,
        )
        for name, values in self.scenario.queues.items():
            app.queue(name, **values)
        for name, planned in self.scenario.schedules.items():
            app.schedule(planned.cadence, name=name, **planned.settings)(app.tasks[planned.task])
        self.notes.say(process.name, "starts")
        process.spawn(self._live(node, process, app))

    def _defaults(self) -> Defaults:
        if self.scenario.patient:
            return replace(DEFAULTS, poll=timedelta(days=30))
        if not self.scenario.prunes:
            return DEFAULTS
        kept = timedelta(seconds=4)
        return replace(DEFAULTS, retention=kept, failure_retention=kept)

    async def _live(self, node: Node, process: Process, app: SimulatedApp) -> None:
        """A process's life; one that could not start or was stopped is started again."""
        try:
            await node.main(process, app)
        except StorageUnavailable:
            self.notes.say(process.name, "could not start")
        else:
            self.notes.say(process.name, "has ended")
            if node.main not in (self._work, self._keep, self._schedule):
                return
        process.is_dead = True
        node.process = None
        self.later(1.0, self.start, node)

    def later(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Outside of any process."""
        self.loop.call_later(delay, action, *arguments, context=self._context)

    async def _work(self, process: Process, app: SimulatedApp) -> None:
        places = self.scenario.places
        self.ledger.places[process] = places
        host = app.worker(concurrency=places, same_loop=True)
        node = next(node for node in self.nodes if node.process is process)
        await host.__aenter__()
        self._hosts[process] = host
        await node.stop.wait()
        process.is_stopping = True
        self.notes.say(process.name, "stops")
        await host.stop(timedelta(seconds=self._chance.choice((0.0, 0.5, 2.0))))

    async def _keep(self, process: Process, app: SimulatedApp) -> None:
        async with app.maintenance():
            await asyncio.Event().wait()

    async def _schedule(self, process: Process, app: SimulatedApp) -> None:
        async with app.scheduler():
            await asyncio.Event().wait()

    async def _meddle_with_schedules(self, process: Process, app: SimulatedApp) -> None:
        chance = Random(f"{self.scenario.seed} meddler")
        async with app:
            await ScheduleMeddler(self, app, chance, self.scenario.span / 15).run()
        self._clients_left.discard("meddler")

    async def _meddle(self, process: Process, app: SimulatedApp) -> None:
        chance = Random(f"{self.scenario.seed} operator")
        pace, scenario = self.scenario.span / 15, self.scenario
        steering = Random(f"{scenario.seed} steerer")
        async with app, asyncio.TaskGroup() as group:
            if scenario.meddles:
                group.create_task(Operator(self, app, chance, pace).run())
            if scenario.steers:
                group.create_task(Steerer(self, app, steering, pace).run())

    async def _push(self, process: Process, app: SimulatedApp) -> None:
        await Pusher(self, app, Random(f"{self.scenario.seed} pusher")).run()

    def _kill(self, process: Process) -> None:
        for node in self.nodes:
            if node.process is process and not process.is_dead:
                self.crash(node)

    def crash(self, node: Node) -> None:
        if node.process is not None and not node.name.startswith(UNKILLED):
            self.notes.say(node.process.name, "CRASHES")
            node.process.die()
            node.process = None
            self.later(self._chance.uniform(0.1, 3.0), self.start, node)

    # The course of things

    def _heal(self) -> None:
        """Liveness: from now on nothing goes wrong. Safety: the end."""
        if self.scenario.mode == "safety":
            self.loop.stop()
            return
        self.notes.say("world", "heals")
        self._healed_at = self.loop.time()
        self.faults.heal()
        self.server.recover()

    @property
    def is_healed(self) -> bool:
        return self._healed_at is not None

    def _on_step(self, step: int) -> None:
        if step % 16:
            return
        if self.loop.jumps == self._moving[0] and step - self._moving[1] > MOST_STEPS_AT_ONCE:
            self.notes.fail("it runs in a circle: thousands of steps, and no time passes")
        if self.loop.jumps != self._moving[0]:
            self._moving = (self.loop.jumps, step)
        if step > self.scenario.most_steps:
            self.notes.fail("it never ends")
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        now = self.loop.time()
        if self._healed_at is not None:
            self.oracle.check_parked()
        open_runs = self._open_runs()
        due = self.oracle.schedules.due(self.oracle.now) if self.scenario.schedulers else []
        if open_runs or due or self._clients_left or self._is_scheduling:
            self._idle_since = None
            if self._healed_at is not None and now > self._healed_at + SETTLING:
                names = ", ".join([*due, *(f"{run.id} {run.status}" for run in open_runs)])
                self.notes.fail(f"not ended {SETTLING:g} s after the last fault: {names}")
        elif self._idle_since is None:
            self._idle_since = now
        elif self._healed_at is not None and now > self._idle_since + self.scenario.calm:
            problems = [self._worker_problem(process) for process in self._hosts]
            if not any(problems):
                self.loop.stop()
            elif now > self._idle_since + self.scenario.calm + IDLING:
                self.notes.fail("; ".join(filter(None, problems)))

    @property
    def _is_scheduling(self) -> bool:
        """Whether times of schedules are still to come."""
        schedules = self.oracle.schedules.schedules.values()
        return any(schedule.next_at is not None for schedule in schedules)

    def _open_runs(self) -> list[Run]:
        """Those that must still end. Who waits for the slot of one that an operator has stopped
        in its course need not; that nobody else waits there, the oracle sees."""
        runs = self.oracle.runs.values()
        stopped = {r.schedule_id for r in runs if r.holds_schedule_slot and self._is_settled(r)}
        left = [run for run in runs if not self._is_settled(run)]
        return [r for r in left if r.schedule_id not in stopped or r.expires_at is not None]

    def _is_settled(self, run: Run) -> bool:
        if run.status is Status.PAUSED:
            return run.expires_at is None or not run.may_expire
        waits = run.status is Status.WAITING and run.run_at is None
        return run.is_terminal or waits

    # Checks

    def acknowledged(self, handle: RunHandle[Any], item: Item) -> None:
        """A trigger was answered: the run exists."""
        run = self.oracle.runs.get(handle.id)
        if run is None or run.task != item.task:
            self.notes.fail(f"run {handle.id}: acknowledged, but it does not exist")
            return
        if not handle.created:
            self.notes.sometimes("returned_existing")
            wanted = item.options.get("idempotency_key"), item.options.get("singleton_key")
            if (run.idempotency_key, run.singleton_key) != wanted:
                self.notes.fail(f"run {handle.id}: returned for another key than its own")
            if item.options.get("singleton_key"):
                self.notes.sometimes("singleton refused")
        elif handle.id in self._triggered:
            self.notes.fail(f"run {handle.id}: created twice")
        else:
            self._triggered[handle.id] = item

    def told(self, run_id: str, status: str, result: Any) -> None:
        """A waiter was told how a run ended."""
        run = self.oracle.runs[run_id]
        if run.status != status or (status == "succeeded" and run.result != result):
            self.notes.fail(f"run {run_id}: a waiter was told {status}, but it is {run.status}")

    def cancel_acknowledged(self, run: Run) -> None:
        stored = self.oracle.runs[run.id]
        if stored.cancellation is None and stored.status is not Status.CANCELLED:
            self.notes.fail(f"run {run.id}: a cancellation was acknowledged and forgotten")

    async def spawn_child(self) -> None:
        """A handler triggers a run."""
        task = self._hosts[current_process()]._app.tasks["plain"]
        try:
            await task.trigger(script=Script(("ok",), 0.0))
        except PerdureError as error:
            self.notes.say(current_process().name, f"no child: {type(error).__name__}")
        else:
            self.notes.sometimes("child spawned")

    def _worker_problem(self, process: Process) -> str | None:
        """Once all is over, every worker has all its places and no leases, between two claims."""
        worker = self._hosts[process]._worker
        if process.is_dead or process.is_stopping or self.ledger.active(process):
            return None
        held, free = list(worker._leases.held), worker._free
        if not (held or worker._recorder.finished) and free == self.scenario.places:
            return None
        places = f"{free} free places of {self.scenario.places}"
        return f"{process.name} is idle with {places}, holding {held}"

    def _check_the_end(self) -> None:
        self.oracle.check_everything()
        for run_id in self._triggered:
            if run_id not in self.oracle.runs:
                self.notes.fail(f"run {run_id}: acknowledged and lost")


def _died_unseen(task: asyncio.Task[Any]) -> bool:
    """Whether it ended with an error that nobody has asked for."""
    if not task.done() or task.cancelled():
        return False
    return bool(getattr(task, "_log_traceback", False)) and task.exception() is not None
