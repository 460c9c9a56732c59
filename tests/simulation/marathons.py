"""Long stories of schedules: minutes with a time every second, and years with clock changes.

Other than the scenarios of a campaign these are long, and so there are few of them.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random  # seeded
from typing import Any

from perdure.core.run.codec import decode_events
from perdure.core.run.reducer import replay
from perdure.core.schedule import cron, every
from perdure.testing.virtual.time import EPOCH
from simulation.database import Database
from simulation.faults import FaultPlan
from simulation.loop import Process
from simulation.oracle import Oracle
from simulation.scenario import SCHEDULERS, Scenario, wrong_clock
from simulation.schedules import Planned
from simulation.workload import Script
from simulation.world import World

QUICK: dict[str, Any] = {"payload": {"script": Script(("ok",), 0.0)}}
EACH: dict[str, Any] = QUICK | {"overlap": "allow", "max_concurrency": 1000}
TROUBLED = FaultPlan(
    before=0.02, after=0.02, slow=0.02, hang=0.005, late=0.01, die=0.002, hint_lost=0.2
)
YEAR = timedelta(days=365.25)


def minutes(seed: int, seconds: float = 600.0, schedulers: int = 5) -> World:
    """A time every second, while schedulers crash and their clocks are wrong."""
    end = EPOCH + timedelta(seconds=seconds)
    settings = EACH | {"misfire": "catch_up", "catch_up_limit": 10_000}
    each_second = Planned("plain", cron("* * * * * *", end=end), settings)
    scenario = _scenario(
        seed,
        span=seconds + 5.0,
        troubles=frozenset({"crash", "jump", "skew", "pause"}),
        workers=1,
        keepers=1,
        prunes=True,
        schedulers=schedulers,
        schedules={"tick": each_second},
        crashes=(round(seconds / 10), round(seconds * 150)),
    )
    return World(scenario, Database())


def years(seed: int, count: int = 10) -> World:
    """Mixed schedules in zones that change their clocks, for so many years."""
    end = EPOCH + count * YEAR
    settings = EACH | {"misfire": "catch_up", "catch_up_limit": 10_000}
    crons = {
        "berlin": ("30 2 * * *", "Europe/Berlin"),
        "new_york": ("30 1 * * SUN", "America/New_York"),
        "lord_howe": ("15 2 * * SUN", "Australia/Lord_Howe"),
        "london": ("0 * * 3,10 SUNL", "Europe/London"),
        "apia": ("30 23 L * *", "Pacific/Apia"),
    }
    schedules = {
        name: Planned("plain", cron(expression, tz=zone, end=end), settings)
        for name, (expression, zone) in crons.items()
    }
    schedules["weekly"] = Planned("plain", every(days=7, end=end), settings)
    scenario = _scenario(
        seed,
        span=(count * YEAR).total_seconds() + 5.0,
        troubles=frozenset({"crash", "skew"}),
        schedulers=3,
        schedules=schedules,
        crashes=(100, 200_000),
        patient=True,
    )
    return Calendar(scenario, Database())


def _scenario(seed: int, **fields: Any) -> Scenario:
    chance = Random(f"{seed} marathon")
    plain: dict[str, Any] = {
        "mode": "liveness",
        "features": frozenset(),
        "faults": TROUBLED,
        "workers": 0,
        "keepers": 0,
        "places": 5,
        "clients": (),
        "meddles": False,
        "prunes": False,
        "clocks": {name: wrong_clock(chance) for name in SCHEDULERS},
        "steers": False,
        "pushes": False,
        "queues": {},
        "haste": 0.0,
        "calm": 0.0,
        "most_steps": 10_000_000,
    }
    return Scenario(seed=seed, **(plain | fields))


class Calendar(World):
    """A world in which nobody executes anything: only what is scheduled counts."""

    def make_oracle(self, database: Database) -> Oracle:
        return CalendarOracle(database, self.ledger, self.notes)


class CalendarOracle(Oracle):
    """Looks at new runs only. What becomes of them is looked at elsewhere, at a cost that grows
    with how many there are."""

    def look(self, writer: Process) -> None:
        for row in self._database.history_after(self._position):
            self._position = row.position
            self._commit_ids.add(row.commit_id)
            self.schedules.created(replay(decode_events(row.events)), self.now)
        self.schedules.look()
