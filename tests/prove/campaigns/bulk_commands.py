"""The campaign of bulk commands, alone and beside a worker."""

from __future__ import annotations

import asyncio

from bulk_stress import measure_bulk, measure_rates
from prove import Outcome, Slice, campaign, require

MIN_RUNS_PER_S = 10_000
MAX_PAUSE_S = 0.5


@campaign(
    "bulk",
    f"Pause, resume, cancel, rerun, retry, replay and discard at least {MIN_RUNS_PER_S} runs/s. "
    f"A busy worker beside them never pauses for {MAX_PAUSE_S} s. The machine must be quiet.",
    unit="runs",
    size=20_000,
    slice_size=20_000,
)
def bulk(part: Slice) -> Outcome:
    rates = asyncio.run(measure_rates(part.url, part.size))
    measured = asyncio.run(measure_bulk(part.url, part.size))
    part.report(part.size)
    counts: dict[str, float] = {"runs": part.size * len(measured)}
    counts |= {f"{name}_runs_per_s": round(rate) for name, rate in rates.items()}
    counts |= {f"{it.action}_beside_worker_runs_per_s": round(it.runs_per_s) for it in measured}
    counts["max_pause_s"] = max(it.pause_s for it in measured)
    print(counts)
    for it in measured:
        require((it.report.done, it.report.refused) == (part.size, {}), f"{it}")
        require(it.pause_s < MAX_PAUSE_S, f"{it.action}: the worker paused for {it.pause_s:.2f} s")
    for name, rate in rates.items():
        require(rate >= MIN_RUNS_PER_S, f"{name}: {rate:.0f} runs/s")
    return Outcome(counts)
