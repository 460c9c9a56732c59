"""Many claimers on narrow limits, some of them killed: was one ever exceeded, was a run left over?

    make prove CAMPAIGN=limits

16 claimers in 4 processes serve three tasks whose keys may hold 1, 2 and 7 leases, over 50 keys.
Now and then a process is killed with SIGKILL, in the middle of whatever it does, and another one
takes its place. What claims count for themselves is
not trusted: a connection of its own samples who holds what all the time, and in the end every lease
ever held is read from the histories. Ends with 1 if anything was exceeded, or has not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import timedelta

from gates import Watch, busiest
from ledger import mismatches
from perdure.core.decide import decide_attention
from perdure.core.limits.admission import LimitScope
from perdure.core.run.backoff import Backoff
from perdure.core.run.commit import Commit
from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Policy
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageUnavailable
from perdure.storage import Storage, open_storage
from storage_kit import a_limit, new_run, request, step, success

SIZES = {"one": 1, "two": 2, "seven": 7}
TASKS = tuple(SIZES)
KEYS = 50
PROCESSES, CLAIMERS = 4, 4
PLACES = 16
BACKLOG = 1000
LEASE = timedelta(seconds=2)
POLICY = Policy(max_attempts=1000, backoff=Backoff(initial=timedelta(milliseconds=20)))
LIMITS = [a_limit(LimitScope.KEY, task, most) for task, most in SIZES.items()]
DRAIN = 120.0
EVERY = 0.005
"""How often the sampler looks, in seconds."""


@dataclass
class Verdict:
    """`reached`: the most leases that a key of each task ever held, by the histories."""

    runs: int = 0
    kills: int = 0
    samples: int = 0
    leases: int = 0
    reached: dict[str, int] = field(default_factory=dict)
    sampled: Counter[str] = field(default_factory=Counter)
    overshoot: int = 0
    unfinished: int = 0
    mismatch: int = 0

    @property
    def is_clean(self) -> bool:
        troubles = self.overshoot + self.unfinished + self.mismatch
        return troubles == 0 and self.reached == SIZES

    def __str__(self) -> str:
        busiest = "/".join(str(self.reached.get(task, 0)) for task in TASKS)
        return (
            f"overshoot={self.overshoot} unfinished={self.unfinished} mismatch={self.mismatch} "
            f"runs={self.runs} "
            f"leases={self.leases} kills={self.kills} samples={self.samples} "
            f"busiest={busiest} of {'/'.join(map(str, SIZES.values()))}"
        )


# A process of claimers


async def serve(url: str) -> None:
    """Claim, hold for a moment, finish; until somebody kills it."""
    storage = open_storage(url, SystemClock())
    async with asyncio.TaskGroup() as group:
        for number in range(CLAIMERS):
            group.create_task(_claim(storage, f"{random.getrandbits(64):x}-{number}"))


async def _claim(storage: Storage, worker_id: str) -> None:
    done: list[Commit] = []
    while True:
        asked = request(PLACES, worker_id=worker_id, tasks=TASKS, lease_ttl=LEASE)
        try:
            claimed = await storage.claim(asked, done)
        except StorageUnavailable:
            continue  # repeated as it is: its commit ids tell what had been stored
        await asyncio.sleep(random.uniform(0.0, 0.02 if claimed.runs else 0.1))
        done = [success(run) for run in claimed.runs]


# Around it


class Sampler:
    """Counts, in one snapshot, who holds what; again and again, on a thread of its own."""

    def __init__(self, url: str, verdict: Verdict) -> None:
        self._url = url
        self._verdict = verdict
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(Watch(self._url)) as watch:
            while not self._stop.wait(EVERY):
                self._verdict.samples += 1
                for scope, task, _, count in watch.holders():
                    if scope == LimitScope.KEY:
                        known = self._verdict.sampled
                        known[task] = max(known[task], count)
                        self._verdict.overshoot += count > SIZES[task]


class Crowd:
    """The processes of claimers."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self._url = url
        self._random = chance
        self._processes = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, self._url])

    def kill_one(self) -> None:
        """And start another in its place."""
        index = self._random.randrange(PROCESSES)
        self._processes[index].kill()
        self._processes[index].wait()
        self._processes[index] = self._start()

    def dismiss(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Feeder:
    """Keeps runs of all keys waiting, and takes back what the dead have held."""

    def __init__(self, storage: Storage, chance: random.Random) -> None:
        self._storage = storage
        self._random = chance
        self.runs = 0

    async def open_runs(self) -> int:
        counts = await self._storage.counts("default")
        return sum(n for (_, status), n in counts.items() if status is not Status.SUCCEEDED)

    async def feed(self) -> None:
        while True:
            if await self.open_runs() < BACKLOG:
                batch = [_wanted(self._random) for _ in range(200)]
                await self._storage.commit(batch)
                self.runs += len(batch)
            await asyncio.sleep(0.05)

    async def maintain(self) -> None:
        while True:
            moment = await self._storage.now()
            due = await self._storage.attention(500)
            steps = [(run, decide_attention(run, moment)) for run in due]
            await self._storage.commit([step(run, events) for run, events in steps if events])
            await self._storage.open_gates(500)
            await asyncio.sleep(0.25)


def _wanted(chance: random.Random) -> Commit:
    """A run of any key; of the widest limit, some keys have much more to do than others."""
    task = chance.choice(TASKS)
    key = int(KEYS * chance.random() ** (3 if task == "seven" else 1))
    priority = chance.randrange(3)
    return new_run(task=task, concurrency_key=f"key-{key:02}", priority=priority, policy=POLICY)


async def stress(
    url: str,
    kills: int,
    *,
    seed: int,
    every: float = 1.5,
    report: Callable[[int], None] = lambda kills: None,
) -> Verdict:
    """Feed and kill so many processes, then let everything end, and judge."""
    verdict, chance = Verdict(), random.Random(seed)
    async with _storage(url) as storage:
        await storage.put_limits(LIMITS)
        feeder, crowd = Feeder(storage, chance), Crowd(url, chance)
        try:
            with Sampler(url, verdict):
                maintaining = asyncio.create_task(feeder.maintain())
                feeding = asyncio.create_task(feeder.feed())
                while verdict.kills < kills:
                    await asyncio.sleep(chance.uniform(0.3, 1.7) * every)
                    crowd.kill_one()
                    verdict.kills += 1
                    report(verdict.kills)
                await _cancelled(feeding)
                verdict.unfinished = await _drain(feeder)
                await _cancelled(maintaining)
        finally:
            crowd.dismiss()
        verdict.runs = feeder.runs
        await _judge(storage, verdict)
        verdict.mismatch = await mismatches(storage)
    return verdict


async def _drain(feeder: Feeder) -> int:
    """How many runs have not ended in the time they had for it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN):
            left = await feeder.open_runs()
            while left:
                await asyncio.sleep(0.2)
                left = await feeder.open_runs()
    return await feeder.open_runs()


async def _judge(storage: Storage, verdict: Verdict) -> None:
    """What the histories tell: every lease there ever was."""
    recorded: defaultdict[str, list[RecordedEvent]] = defaultdict(list)
    cursor: str | None = None
    while changes := await storage.changes(cursor, limit=2000):
        cursor = changes[-1].cursor
        for change in changes:
            recorded[change.run_id] += change.events
    histories = [
        [it.event for it in sorted(events, key=lambda it: it.sequence)]
        for events in recorded.values()
    ]
    verdict.leases = sum(it.type == "run.lease_claimed" for events in histories for it in events)
    for gate, most in busiest(histories).items():
        if gate.scope is LimitScope.KEY:
            verdict.reached[gate.name] = max(verdict.reached.get(gate.name, 0), most)
            verdict.overshoot += max(most - SIZES[gate.name], 0)


async def _cancelled(task: asyncio.Task[None]) -> None:
    if task.done():
        task.result()  # it should not have ended: say why
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def _storage(url: str) -> AsyncIterator[Storage]:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    try:
        yield storage
    finally:
        await storage.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
