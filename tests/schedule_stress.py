"""Five scheduler processes, a time every second, some of them killed: was one missed or doubled?

    make prove CAMPAIGN=schedules

Every few seconds one of the `perdure scheduler` processes is killed with SIGKILL, or stopped for a
while and let go on, in the middle of whatever it does; a killed one is replaced. Nobody executes
the runs: what counts is that each second has one, and one only. Ends with 1 if any is missing, or
was made twice, or before its time.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from perdure import App, cron
from perdure.core.invariants import check_occurrences
from perdure.core.run.run import Run
from perdure.core.schedule import Cron, Schedule, is_own_occurrence

PROCESSES = 5
PAUSE = 2.5
LATE = timedelta(seconds=60)
"""So long after the end the last times may be decided."""
PAGE = 1000


@dataclass
class Verdict:
    """`lag`: how long after its time each occurrence was made, in seconds."""

    seconds: int = 0
    made: int = 0
    kills: int = 0
    pauses: int = 0
    missing: int = 0
    doubled: int = 0
    early: int = 0
    problems: list[str] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.doubled or self.early or self.problems) and self.made > 0

    def __str__(self) -> str:
        lag = sorted(self.lag) or [0.0]
        middle, worst = lag[len(lag) // 2] * 1000, lag[-1] * 1000
        return (
            f"missing={self.missing} doubled={self.doubled} early={self.early} made={self.made} "
            f"of {self.seconds} kills={self.kills} pauses={self.pauses} "
            f"lag_ms median={middle:.0f} worst={worst:.0f} {'; '.join(self.problems)}".rstrip()
        )


class Crowd:
    """Scheduler processes."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self._url = url
        self._random = chance
        self._processes = [self._start() for _ in range(PROCESSES)]

    def kill_one(self) -> None:
        place = self._random.randrange(PROCESSES)
        self._processes[place].kill()
        self._processes[place].wait()
        self._processes[place] = self._start()

    async def pause_one(self) -> None:
        process = self._random.choice(self._processes)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0.1, PAUSE))
        process.send_signal(signal.SIGCONT)

    def dismiss(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "perdure", "scheduler", "--url", self._url]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=os.environ)


async def stress(url: str, seconds: float, *, seed: int, every: float = 4.0) -> Verdict:
    """A time every second for so long, and something happens to a scheduler every few."""
    verdict, chance = Verdict(), random.Random(seed)
    app = App(url)
    app.task(name="tick")(_nothing)
    async with app:
        crowd = Crowd(url, chance)
        try:
            start = await app.storage.now() + timedelta(seconds=3)
            end = start + timedelta(seconds=seconds)
            each_second = cron("* * * * * *", start=start, end=end)
            await app.schedules.create("tick", each_second, "tick", misfire="catch_up")
            while await app.storage.now() < end:
                await asyncio.sleep(chance.uniform(0.3, 1.7) * every)
                await _disturb(crowd, chance, verdict)
            schedule = await _decided(app, end)
        finally:
            crowd.dismiss()
        await _judge(app, schedule, verdict)
    return verdict


async def _nothing() -> None: ...


async def _disturb(crowd: Crowd, chance: random.Random, verdict: Verdict) -> None:
    if chance.random() < 0.6:
        crowd.kill_one()
        verdict.kills += 1
    else:
        await crowd.pause_one()
        verdict.pauses += 1


async def _decided(app: App, end: datetime) -> Schedule:
    """Once there is nothing left to decide, or it has taken too long."""
    while (schedule := await app.schedules.get("tick")).next_at is not None:
        if await app.storage.now() > end + LATE:
            break
        await asyncio.sleep(0.2)
    return schedule


async def _judge(app: App, schedule: Schedule, verdict: Verdict) -> None:
    made = [(run.created_at, time) async for run in _runs(app) if (time := run.source.nominal_time)]
    times = [time for _, time in made]
    counts = Counter(times)
    cadence = schedule.cadence
    assert isinstance(cadence, Cron)
    start, end = cadence.start, cadence.end
    assert start is not None
    assert end is not None
    first = (start + timedelta(microseconds=999_999)).replace(microsecond=0)
    expected = [first + timedelta(seconds=n) for n in range(int((end - first).total_seconds()) + 1)]
    verdict.seconds, verdict.made = len(expected), len(counts)
    verdict.missing = len(set(expected) - set(counts))
    verdict.doubled = sum(count - 1 for count in counts.values())
    verdict.lag = [(at - time).total_seconds() for at, time in made]
    verdict.early = sum(lag < 0 for lag in verdict.lag)
    verdict.problems = check_occurrences(schedule, times, [])


async def _runs(app: App) -> AsyncIterator[Run]:
    cursor: str | None = None
    while True:
        page = await app.runs.list(schedule_id="tick", limit=PAGE, cursor=cursor)
        for run in page.runs:
            assert is_own_occurrence(run)
            yield run
        if page.cursor is None:
            return
        cursor = page.cursor
