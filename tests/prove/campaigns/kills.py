"""Campaigns that kill real processes under load."""

from __future__ import annotations

import asyncio

import limit_stress
import schedule_stress
import torture as worker_torture
import transaction_torture
from prove import Outcome, Slice, campaign, require

LEASE_TTL_S = 3.0


@campaign(
    "torture",
    "Kill workers with SIGKILL under load: no run is lost, doubled, stuck or recovered late.",
    unit="kills",
    size=200,
    slice_size=25,
)
def torture(part: Slice) -> Outcome:
    plan = worker_torture.make_plan(part.size, ttl=LEASE_TTL_S, seed=part.seed)
    verdict = worker_torture.torture(part.url, part.directory, plan, part.report)
    require(verdict.is_clean and verdict.is_timely, str(verdict))
    return Outcome(
        {
            "kills": verdict.kills,
            "runs": verdict.runs,
            "recoveries": len(verdict.found.recoveries),
            "max_recovery_s": verdict.slowest,
        }
    )


@campaign(
    "transactions",
    "Kill workers around the COMMIT of ctx.transaction(): effect, child and success together.",
    unit="kills",
    size=500,
    slice_size=100,
)
def transactions(part: Slice) -> Outcome:
    verdict = transaction_torture.torture(part.url, part.size, part.seed, part.report)
    require(verdict.is_clean, str(verdict))
    return Outcome({"kills": verdict.kills.total(), "runs": verdict.runs})


@campaign(
    "limits",
    "Kill claimers on narrow limits: no limit is exceeded and every run ends.",
    unit="kills",
    size=60,
    slice_size=20,
)
def limits(part: Slice) -> Outcome:
    stressed = limit_stress.stress(part.url, part.size, seed=part.seed, report=part.report)
    verdict = asyncio.run(stressed)
    require(verdict.is_clean, str(verdict))
    return Outcome({"kills": verdict.kills, "runs": verdict.runs, "leases": verdict.leases})


@campaign(
    "schedules",
    "Kill and pause schedulers with a time every second: none is missed, doubled or early.",
    unit="seconds",
    size=120,
    slice_size=60,
)
def schedules(part: Slice) -> Outcome:
    verdict = asyncio.run(schedule_stress.stress(part.url, part.size, seed=part.seed))
    require(verdict.is_clean, str(verdict))
    return Outcome(
        {
            "made": verdict.made,
            "kills": verdict.kills,
            "pauses": verdict.pauses,
            "max_lag_s": max(verdict.lag),
        }
    )
