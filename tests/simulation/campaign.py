"""Many seeds, one after the other."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from simulation.database import Database
from simulation.notes import POINTS, Notes
from simulation.scenario import make_scenario
from simulation.world import World

_databases: list[Database] = []


def _database() -> Database:
    if not _databases:
        _databases.append(Database())
    return _databases[0]


def replay(seed: int) -> Notes:
    """One seed's scenario, from beginning to end."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return World(make_scenario(seed), _database()).run()
    finally:
        logging.disable(disabled)


def command(seed: int) -> str:
    """What shows a seed again."""
    return f"PYTHONPATH=tests python -m simulation --seed {seed}"


class Campaign(msgspec.Struct):
    """What many seeds came to."""

    seeds: int = 0
    seen: Counter[str] = msgspec.field(default_factory=Counter)
    problems: dict[int, str] = {}
    digests: dict[int, str] = {}

    @property
    def missed(self) -> list[str]:
        """Rare states that no seed reached."""
        return [name for name in POINTS if not self.seen[name]]

    def add(self, seed: int, notes: Notes) -> None:
        self.seeds += 1
        self.seen += notes.seen
        self.digests[seed] = notes.digest()
        if notes.problem is not None:
            self.problems[seed] = notes.problem


def run_seeds(seeds: Iterable[int]) -> Iterator[tuple[int, Notes]]:
    for seed in seeds:
        yield seed, replay(seed)
