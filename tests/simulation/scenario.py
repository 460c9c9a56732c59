"""What one seed stands for. Swarm testing: each enables another subset of faults and features."""

from __future__ import annotations

from random import Random  # seeded
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.limits.rates import Rate
from simulation.faults import FaultPlan
from simulation.schedules import Planned, plan_schedules
from simulation.workload import FEATURES, Item, make_items, with_transactions

TROUBLES = (
    "before",
    "after",
    "slow",
    "hang",
    "late",
    "die",
    "outage",
    "crash",
    "pause",
    "forget",
    "shutdown",
    "skew",
    "jump",
    "no hints",
    "bad hints",
)

LATER_TROUBLES = {
    "read only": ("read only", 0.12),
    "silent": ("silent 5", 0.08),
    "set back": ("set back 1", 0.06),
    "stale": ("stale 3", 0.25),
}
"""How likely each is, and what the chance of it is called."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a simulation that chance decides before it begins."""

    seed: int
    mode: str
    troubles: frozenset[str]
    features: frozenset[str]
    faults: FaultPlan
    span: float
    workers: int
    keepers: int
    places: int
    clients: tuple[tuple[Item, ...], ...]
    meddles: bool
    prunes: bool
    clocks: dict[str, tuple[float, float]]
    steers: bool
    pushes: bool
    queues: dict[str, dict[str, Any]]
    haste: float
    calm: float
    schedulers: int = 0
    schedules: dict[str, Planned] = {}
    meddles_with_schedules: bool = False
    crashes: tuple[int, int] = (4, 1500)
    """At most so many, within so many steps."""
    most_steps: int = 60_000
    versions: dict[str, int] = {}
    """The version of every task on these nodes, in the middle of a rolling deploy."""
    patient: bool = False
    """Nobody polls: for stories of years."""

    def __str__(self) -> str:
        items = sum(len(items) for items in self.clients)
        return (
            f"seed {self.seed}: {self.mode}, {self.workers} workers of {self.places} places, "
            f"{self.keepers} keepers, {items} triggers, {self.span:.0f} s; "
            f"{self.schedulers} schedulers of {len(self.schedules)} schedules; "
            f"versions: {sorted(self.versions.items()) or 'none'}; "
            f"troubles: {', '.join(sorted(self.troubles)) or 'none'}; "
            f"features: {', '.join(sorted(self.features)) or 'none'}"
        )


def make_scenario(seed: int) -> Scenario:
    chance = Random(f"{seed} scenario")
    most = chance.choice((0.0, 0.2, 0.4, 0.6))
    troubles = {name for name in TROUBLES if chance.random() < most}
    features = {name for name in FEATURES if chance.random() < 0.4}
    if chance.random() < 0.3:
        # Long attempts and whatever may part them from their owner.
        features |= {"long"}
        only = {chance.choice(("pause", "outage", "outage", "crash", "shutdown", "hang", "after"))}
        troubles = only if chance.random() < 0.6 else troubles | only
    workers, keepers = chance.randint(1, 3), chance.choice((1, 1, 2))
    span = chance.uniform(4.0, 11.0)
    clients = tuple(
        tuple(make_items(chance, features, span * 0.6)) for _ in range(chance.randint(1, 2))
    )
    separate = Random(f"{seed} transactions")
    if separate.random() < 0.6:
        clients = tuple(tuple(with_transactions(items, separate)) for items in clients)
    return Scenario(
        **_scheduling(seed, span),
        versions={} if "fair" in features else _versions(seed, workers),
        seed=seed,
        mode="safety" if chance.random() < 0.25 else "liveness",
        troubles=frozenset(troubles | _later_troubles(seed)),
        features=frozenset(features),
        faults=_with_later_faults(_plan(chance, troubles), seed),
        span=span,
        workers=workers,
        keepers=keepers,
        places=chance.choice((1, 2, 5)),
        clients=clients,
        meddles="meddle" in features,
        prunes="prune" in features,
        clocks=_clocks(seed, chance, troubles),
        steers="steer" in features,
        pushes="push" in features,
        queues=_queues(chance, features),
        haste=chance.choice((0.0, 0.01, 0.1)),
        calm=chance.choice((0.0, 0.0, 0.0, 4.0)),
    )


def _later_troubles(seed: int) -> set[str]:
    """Troubles that came later, by chances of their own: the other scenarios stay as they were,
    and the seeds that are known for a bug are among those."""
    return {
        name
        for name, (label, part) in LATER_TROUBLES.items()
        if Random(f"{seed} {label}").random() < part
    }


def _with_later_faults(plan: FaultPlan, seed: int) -> FaultPlan:
    later = _later_troubles(seed)
    return replace(plan, silent=0.01 if "silent" in later else 0.0, stale="stale" in later)


def _versions(seed: int, workers: int) -> dict[str, int]:
    """Old and new code side by side, in some scenarios; one worker has the new code. By a chance
    of its own: the others stay as they were. Not in fair queues, since an old worker passes by
    what needs newer code, whichever key it has."""
    chance = Random(f"{seed} versions")
    if chance.random() > 0.2 or workers < 2:
        return {}
    others = [*(f"worker{i}" for i in range(1, workers)), "client0", "client1"]
    return {"worker0": 2} | {name: chance.choice((1, 2)) for name in others}


def _scheduling(seed: int, span: float) -> dict[str, Any]:
    """Schedules, in some scenarios. By a chance of its own: the others stay as they were."""
    chance = Random(f"{seed} schedules")
    if chance.random() > 0.35:
        return {}
    return {
        "schedulers": chance.randint(1, 3),
        "schedules": plan_schedules(chance, span),
        "meddles_with_schedules": chance.random() < 0.4,
    }


def _queues(chance: Random, features: set[str]) -> dict[str, dict[str, Any]]:
    """What code says about queues."""
    queues: dict[str, dict[str, Any]] = {}
    if "queue" in features:
        queues["busy"] = {"concurrency": chance.randint(1, 2)}
    if "rates" in features:
        rate = chance.choice((Rate(1, per=0.4), Rate(4, per=2, burst=2)))
        queues.setdefault("busy", {})["rate"] = rate
    if "fair" in features:
        queues["fair"] = {"fair": True, "concurrency": chance.choice((None, 1, 2))}
    return queues


def _plan(chance: Random, troubles: set[str]) -> FaultPlan:
    def rate(name: str, most: float) -> float:
        return chance.uniform(0.1, 1.0) * most if name in troubles else 0.0

    return FaultPlan(
        before=rate("before", 0.15),
        after=rate("after", 0.15),
        slow=rate("slow", 0.08),
        hang=rate("hang", 0.03),
        late=rate("late", 0.05),
        die=rate("die", 0.02),
        latency=chance.choice((0.0, 0.001, 0.01, 0.05, 0.15)),
        pensive=chance.choice((0.0, 0.0, 0.3, 1.0)),
        refusal=chance.choice((0.0, 0.02, 0.5)),
        holds=chance.random() < 0.3,
        hints="no hints" not in troubles,
        hint_lost=rate("bad hints", 0.5),
        hint_twice=rate("bad hints", 0.5),
        hint_delay=2.0 if "bad hints" in troubles else 0.01,
    )


def _clocks(seed: int, chance: Random, troubles: set[str]) -> dict[str, tuple[float, float]]:
    if "skew" not in troubles:
        return {}
    names = [f"{kind}{i}" for kind in ("worker", "keeper", "client") for i in range(3)]
    clocks = {name: wrong_clock(chance) for name in [*names, "operator", "pusher"]}
    other = Random(f"{seed} schedulers' clocks")
    return clocks | {name: wrong_clock(other) for name in [*SCHEDULERS, "meddler"]}


SCHEDULERS = tuple(f"scheduler{i}" for i in range(5))


def wrong_clock(chance: Random) -> tuple[float, float]:
    """How wrong, and by how much more with every second."""
    return chance.uniform(-120.0, 120.0), chance.uniform(-0.01, 0.01)
