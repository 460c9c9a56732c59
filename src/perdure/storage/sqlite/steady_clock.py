"""A clock that never runs backwards within a database.

SQLite has no clock of its own, so its time is the machine's. If that is set back, runs that are due
and leases of dead workers would wait for as long as the step. So the database's time is the later
of the machine's time and of the last instant that is known to be stored, which advances with a
clock that never steps. The last history row tells that instant, so nothing more is written for it.

After a step back the database stays ahead of the machine, by the length of the step. Schedules
follow the machine's clock once the lead is longer than `MAX_SCHEDULE_LEAD`: they must not fire in
a future that the machine has not reached.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from perdure.storage.contract.runs import Clock

MAX_SCHEDULE_LEAD = timedelta(minutes=5)
_NO_TIME = timedelta(0)


class SteadyClock:
    """The time of one database, as this process knows it. Any thread may read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._instant = clock.now()
        self._elapsed = clock.elapsed()

    def now(self) -> datetime:
        machine = self._clock.now()
        # Read second: a delay between the two makes the steady time too early, never too late.
        elapsed = self._clock.elapsed()
        with self._lock:
            steady = self._instant + timedelta(seconds=elapsed - self._elapsed)
            if machine >= steady:
                self._instant, self._elapsed = machine, elapsed
                return machine
            return steady

    def observe(self, stored: datetime) -> None:
        """Continue from `stored` if that is later than the time so far."""
        if stored > self.now():
            with self._lock:
                self._instant, self._elapsed = stored, self._clock.elapsed()

    @property
    def lead(self) -> timedelta:
        """How far the database's time is ahead of the machine's."""
        return max(self.now() - self._clock.now(), _NO_TIME)

    def schedule_now(self) -> datetime:
        """Return the time by which schedules fire."""
        return self._clock.now() if self.lead > MAX_SCHEDULE_LEAD else self.now()

    def elapsed(self) -> float:
        return self._clock.elapsed()

    def jitter(self) -> float:
        return self._clock.jitter()

    async def sleep(self, delay: timedelta) -> None:
        await self._clock.sleep(delay)
