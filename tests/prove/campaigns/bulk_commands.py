"""The campaign of bulk commands beside a worker."""

from __future__ import annotations

import asyncio

from bulk_stress import measure_bulk
from prove import Outcome, Slice, campaign, require

MIN_RUNS_PER_S = 10_000
MAX_PAUSE_S = 0.5


@campaign(
    "bulk",
    f"Pause, resume, cancel, rerun, retry, replay and discard runs beside a busy worker: at least "
    f"{MIN_RUNS_PER_S} runs/s each, and the worker never pauses for {MAX_PAUSE_S} s. The machine "
    f"must be quiet.",
    unit="runs",
    size=20_000,
    slice_size=20_000,
)
def bulk(part: Slice) -> Outcome:
    measured = asyncio.run(measure_bulk(part.url, part.size))
    part.report(part.size)
    counts: dict[str, float] = {"runs": part.size * len(measured)}
    counts |= {f"{it.action}_runs_per_s": round(it.runs_per_s) for it in measured}
    counts["max_pause_s"] = max(it.pause_s for it in measured)
    print(counts)
    for it in measured:
        require((it.report.done, it.report.refused) == (part.size, {}), f"{it}")
        require(it.runs_per_s >= MIN_RUNS_PER_S, f"{it.action}: {it.runs_per_s:.0f} runs/s")
        require(it.pause_s < MAX_PAUSE_S, f"{it.action}: the worker paused for {it.pause_s:.2f} s")
    return Outcome(counts)
