"""What an idle transaction does to a contender that goes on working.

Somebody left a transaction open: on PostgreSQL nothing that died since can be cleaned away, on
SQLite the log cannot be moved into the file. One worker and one producer go on, lap by lap; the
rates of the laps are compared with those of the same time without it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

from benchmarks.measures import Scale
from benchmarks.race import Entrant

FREE, PINNED = "free", "pinned"
LAPS_AT_LEAST = 3


def measure(entrant: Entrant, scale: Scale) -> dict[str, list[float]]:
    """Jobs a second of each lap, end to end."""
    return {FREE: _laps(entrant, scale, pinned=False), PINNED: _laps(entrant, scale, pinned=True)}


def _laps(entrant: Entrant, scale: Scale, *, pinned: bool) -> list[float]:
    count = scale.of(entrant.contender.drain)
    rates: list[float] = []
    entrant.reset()
    with entrant.store.pinned() if pinned else nullcontext(), entrant.end_to_end_laps() as lap:
        over = time.monotonic() + scale.pressure_seconds
        while len(rates) < LAPS_AT_LEAST or time.monotonic() < over:
            rates.append(round(lap(count), 1))
    return rates
