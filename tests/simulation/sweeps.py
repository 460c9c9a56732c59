"""Simulations in processes of their own, so that a planted bug cannot reach another test."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime

import msgspec
import pytest

from simulation import replay
from simulation.marathons import minutes, years
from simulation.schedule_bugs import BANK
from simulation.world import World


class Sweep(msgspec.Struct):
    """What a range of seeds came to."""

    seen: Counter[str]
    seed: int | None = None
    problem: str | None = None


def sweep(seeds: Iterable[int]) -> Sweep:
    """Run the seeds until one of them finds a problem."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        notes = replay(seed)
        seen += notes.seen
        if notes.problem is not None:
            return Sweep(seen, seed, notes.problem)
    return Sweep(seen)


def sweep_with_bug(name: str, seeds: Iterable[int]) -> Sweep:
    """The same, with a bug of the bank in the engine."""
    [bug] = [bug for bug in BANK if bug.name == name]
    with pytest.MonkeyPatch.context() as patch:
        bug.apply(patch.setattr)
        return sweep(seeds)


class Marathon(msgspec.Struct):
    """What a long story came to: the times that were made, by schedule."""

    problem: str | None
    seen: Counter[str]
    crashes: int
    times: dict[str, set[datetime]]


def run_minutes(seed: int, seconds: int) -> Marathon:
    return _marathon(minutes(seed, seconds))


def run_years(seed: int, count: int) -> Marathon:
    return _marathon(years(seed, count))


def _marathon(world: World) -> Marathon:
    logging.disable(logging.CRITICAL)
    try:
        notes = world.run()
    finally:
        logging.disable(logging.NOTSET)
    names = world.scenario.schedules
    return Marathon(
        problem=notes.problem,
        seen=notes.seen,
        crashes=sum(line.endswith("CRASHES") for line in notes.lines),
        times={name: world.oracle.schedules.times(name) for name in names},
    )


@contextmanager
def simulating_processes(number: int) -> Iterator[Executor]:
    """Yield a pool of processes; what has not begun in the end is cancelled."""
    with ProcessPoolExecutor(number, multiprocessing.get_context("spawn")) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)
