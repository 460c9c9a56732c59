"""Kills real workers under load and counts what was lost: nothing, or the campaign fails.

    make prove CAMPAIGN=torture

A client triggers a mix of tasks and remembers what was acknowledged. Meanwhile workers are killed
with SIGKILL: mostly one at random, while maintenance lives elsewhere; now and then all of them
at once, maintenance included.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet import HERE, Fleet, WorkerProcess
from ledger import Findings, Ledger, Recovery, insist
from perdure import App
from perdure.core.run.run import Run
from perdure.errors import NotAllowed, RunCancelled, RunFailed, StorageUnavailable

WORKERS = 4
SLACK = 2.0
MOST_OPEN = 120
BYSTANDER = ("--queues", "nothing", "--concurrency", "1")
WORKER = ("--concurrency", "16")


@dataclass
class Plan:
    """How many workers to kill, one by one and all together, and how long a lease lives."""

    kills: int
    massacres: int
    ttl: float
    seed: int
    pause: tuple[float, float] = (0.3, 1.0)

    @property
    def grace(self) -> float:
        return self.ttl / 3


@dataclass
class Verdict:
    kills: int
    runs: int
    acked: int
    found: Findings
    mismatch: int
    slowest: float = 0.0
    slowest_claim: float = 0.0
    too_slow: list[str] = field(default_factory=list)
    wrongly_recovered: list[Recovery] = field(default_factory=list)

    def __str__(self) -> str:
        found = self.found
        return (
            f"kills={self.kills} runs={self.runs} acked={self.acked} lost={len(found.lost)} "
            f"double_completed={len(found.double_completed)} stuck={len(found.stuck)} "
            f"mismatch={self.mismatch} max_recovery_s={self.slowest:.2f} "
            f"max_reclaim_s={self.slowest_claim:.2f} recovered={len(found.recoveries)} "
            f"too_slow={len(self.too_slow)} wrongly_recovered={len(self.wrongly_recovered)} "
            f"wrong_results={len(found.wrong)}"
        )

    @property
    def is_clean(self) -> bool:
        found = self.found
        troubles = (found.lost, found.double_completed, found.stuck, found.wrong)
        return not (any(troubles) or self.mismatch)

    @property
    def is_timely(self) -> bool:
        """Whether leases were recovered in time, and only leases of killed workers.

        Both depend on how busy the machine is: a worker without CPU cannot renew its leases.
        """
        return not (self.too_slow or self.wrongly_recovered)


def load_app(url: str, **settings: object) -> Any:
    """The module of `torture_app`, for a database, as a fresh process would see it."""
    added = {"PERDURE_URL": url}
    added |= {f"PERDURE_{name.upper()}": str(value) for name, value in settings.items()}
    before = dict(os.environ)
    os.environ.update(added)
    try:
        spec = importlib.util.spec_from_file_location("torture_app", HERE / "torture_app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return module


async def _open(stack: AsyncExitStack, app: App) -> App:
    """Open the app. Try again while the server of the database is too busy to answer."""
    while True:
        try:
            return await stack.enter_async_context(app)
        except StorageUnavailable:
            continue


class Load:
    """A client that keeps the queue filled with a mix of tasks."""

    def __init__(self, module: Any, ledger: Ledger, ttl: float, seed: int) -> None:
        self._module = module
        self._ledger = ledger
        self._ttl = ttl
        self._random = random.Random(seed)
        self._number = 0
        self._cancelling: set[asyncio.Task[None]] = set()

    async def go_on(self) -> None:
        while True:
            if self._ledger.open < MOST_OPEN:
                await asyncio.gather(*(self._one() for _ in range(10)))
            await asyncio.sleep(0.05)

    async def settle(self) -> None:
        await asyncio.gather(*self._cancelling)

    async def _one(self) -> None:
        self._number = number = self._number + 1
        task, expected, *arguments = self._pick()
        handle = await insist(task.trigger, number, *arguments)
        if handle is None:
            return
        self._ledger.acknowledge(handle, expected)
        if expected is RunCancelled:
            self._cancel_later(handle.id)

    def _pick(self) -> tuple[Any, ...]:
        """A task, what it must come to, and its further arguments."""
        tasks, doubled = self._module, 2 * self._number
        [chosen] = self._random.choices(
            [
                (tasks.double, doubled),
                (tasks.double_in_a_thread, doubled),
                (tasks.double_at_second_try, doubled),
                (tasks.double_slowly, doubled, self._random.uniform(0.3, 1.5 * self._ttl)),
                (tasks.refuse, RunFailed),
                (tasks.go_on_for_ever, RunCancelled),
            ],
            weights=[55, 15, 10, 7, 8, 5],
        )
        return chosen

    def _cancel_later(self, run_id: str) -> None:
        cancelling = asyncio.create_task(self._cancel(run_id, self._random.uniform(0.1, self._ttl)))
        self._cancelling.add(cancelling)
        cancelling.add_done_callback(self._cancelling.discard)

    async def _cancel(self, run_id: str, after: float) -> None:
        await asyncio.sleep(after)
        while True:
            try:
                run: Run = await self._module.app.runs.cancel(run_id)
            except (StorageUnavailable, NotAllowed):
                await asyncio.sleep(0.2)
            else:
                assert run.id == run_id
                return


class Campaign:
    """One plan on one database."""

    def __init__(self, url: str, fleet: Fleet, plan: Plan, report: Callable[[int], None]) -> None:
        self._fleet = fleet
        self._plan = plan
        self._report = report
        self._random = random.Random(plan.seed)
        self._module = load_app(url, lease_ttl=plan.ttl)
        self._bounds: dict[str, float] = {}
        self._workers: list[WorkerProcess] = []

    async def run(self) -> Verdict:
        async with AsyncExitStack() as stack:
            app = await _open(stack, self._module.app)
            ledger = Ledger(app)
            load = Load(self._module, ledger, self._plan.ttl, self._plan.seed)
            await self._launch()
            loading = asyncio.create_task(load.go_on())
            await self._kill_them()
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await load.settle()
            await ledger.settle(self._plan.ttl * 3 + 30)
            return await self._judge(ledger)

    async def _launch(self) -> None:
        self._bystander = self._fleet.start(*BYSTANDER)
        self._workers = [self._fleet.start(*WORKER) for _ in range(WORKERS)]
        await self._ready()

    async def _ready(self) -> None:
        for worker in [self._bystander, *self._workers]:
            await asyncio.to_thread(worker.wait_until_ready)

    async def _kill_them(self) -> None:
        plan = self._plan
        every = max(plan.kills // max(plan.massacres, 1), 1)
        await asyncio.sleep(plan.grace + 0.5)
        for kill in range(1, plan.kills + 1):
            await asyncio.sleep(self._random.uniform(*plan.pause))
            await self._kill_one()
            if kill % every == 0 and kill // every <= plan.massacres:
                await self._massacre()
                if kill < plan.kills:
                    await asyncio.sleep(plan.ttl + plan.grace + SLACK)

    async def _kill_one(self) -> None:
        place = self._random.randrange(WORKERS)
        await asyncio.to_thread(self._workers[place].wait_until_ready)
        self._kill(self._workers[place], self._plan.ttl + SLACK)
        self._workers[place] = self._fleet.start(*WORKER)

    async def _massacre(self) -> None:
        """All of them, and nobody left to recover; not before the last one's leases are."""
        await asyncio.sleep(self._plan.ttl + SLACK)
        await self._ready()
        bound = self._plan.ttl + self._plan.grace + SLACK
        for worker in [self._bystander, *self._workers]:
            self._kill(worker, bound)
        await self._launch()

    def _kill(self, worker: WorkerProcess, bound: float) -> None:
        worker.kill()
        assert worker.worker_id is not None
        self._bounds[worker.worker_id] = bound
        self._report(len(self._bounds))

    async def _judge(self, ledger: Ledger) -> Verdict:
        found = await ledger.check()
        totals = await asyncio.to_thread(self._fleet.audit)
        verdict = Verdict(
            kills=len(self._bounds),
            runs=totals["runs"],
            acked=len(ledger.promises),
            found=found,
            mismatch=totals["mismatches"],
        )
        self._time_recoveries(verdict)
        return verdict

    def _time_recoveries(self, verdict: Verdict) -> None:
        killed_at = {w.worker_id: w.killed_at for w in self._fleet.all if w.killed_at is not None}
        for recovery in verdict.found.recoveries:
            since = killed_at.get(recovery.worker_id)
            if since is None or recovery.at < since:
                verdict.wrongly_recovered.append(recovery)
                continue
            taken = (recovery.at - since).total_seconds()
            verdict.slowest = max(verdict.slowest, taken)
            if taken > self._bounds[recovery.worker_id]:
                verdict.too_slow.append(f"{recovery.run_id} {taken:.2f} s")
            if recovery.claimed_again_at is not None:
                claimed = (recovery.claimed_again_at - since).total_seconds()
                verdict.slowest_claim = max(verdict.slowest_claim, claimed)


def make_plan(kills: int, ttl: float, seed: int) -> Plan:
    """Kill so many workers, some of them all at once."""
    # A massacre kills five, and takes as long as a dozen single kills.
    massacres = kills // 25
    single = max(kills - massacres * (WORKERS + 1), 0)
    return Plan(single, massacres, ttl, seed)


def torture(
    url: str, directory: Path, plan: Plan, report: Callable[[int], None] = lambda kills: None
) -> Verdict:
    """Play a plan; the workers' logs stay in `directory`."""
    with Fleet(directory, url, lease_ttl=plan.ttl) as fleet:
        return asyncio.run(Campaign(url, fleet, plan, report).run())
