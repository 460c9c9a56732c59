"""Eight processes on limits of every kind: never one lease too many, and nobody is left waiting."""

from __future__ import annotations

from contextlib import closing

import pytest

from deadlocks import deadlocks
from gates import LIMITS, Watch, busiest, limited_runs
from perdure.core.limits.admission import LimitScope
from perdure.storage.contract.storage import Storage
from processes import Crew
from storage_kit import check_all, history, stored

pytestmark = pytest.mark.system

PROCESSES = 8
RUNS_EACH = 50


async def test_no_limit_is_ever_exceeded_and_no_gate_stays_shut(
    crew: Crew, storage: Storage, storage_url: str
) -> None:
    await storage.put_limits(LIMITS)
    runs = await stored(storage, *limited_runs(RUNS_EACH))

    reports = crew.play(
        "finish_under_limits",
        storage_url,
        [{"url": storage_url, "worker_id": f"worker-{n}"} for n in range(PROCESSES)],
    )

    assert [report["excess"] for report in reports] == [[]] * PROCESSES
    most = {(it.scope, it.name): it.max_leases or 0 for it in LIMITS}
    histories = [await history(storage, run) for run in runs]
    reached = busiest(histories)
    exceeded = {
        gate: count
        for gate, count in reached.items()
        if count > most.get((gate.scope, gate.name), count)
    }
    assert exceeded == {}
    assert {gate.scope for gate in reached} == set(LimitScope)
    with closing(Watch(storage_url)) as watch:
        await storage.open_gates(1000)
        assert watch.parked() == 0
    await check_all(storage, [run.id for run in runs])
    await storage.close()
    assert deadlocks(storage_url) == 0
