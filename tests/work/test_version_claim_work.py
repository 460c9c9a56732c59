"""Runs of a newer version in front of older ones do not make a claim cost more statements."""

from __future__ import annotations

from builders import TASK
from perdure import App
from perdure.engine.runtime.ids import make_token
from perdure.storage.contract.runs import ClaimRequest
from storage_kit import new_run

QUEUE = "versioned"


async def _claim_statements(url: str, newer: int) -> tuple[int, int]:
    """Return the claimed runs, and the statements of a claim for version 1, behind `newer` runs of
    version 2."""
    statements: list[str] = []
    async with App(url, hints=False, on_statement=statements.append) as app:
        runs = [new_run(queue=QUEUE, task_version=2) for _ in range(newer)]
        runs += [new_run(queue=QUEUE, task_version=1) for _ in range(10)]
        await app.storage.commit(runs)
        request = ClaimRequest(
            worker_id="old",
            tokens=tuple(make_token() for _ in range(10)),
            tasks=(TASK,),
            queues=(QUEUE,),
            versions={TASK: 1},
            start=10,
            commit_id=make_token(),
        )
        statements.clear()
        claimed = await app.storage.claim(request)
        return len(claimed.runs), len(statements)


async def test_a_thousand_runs_of_a_newer_version_cost_a_claim_nothing(storage_url: str) -> None:
    alone = await _claim_statements(storage_url, 0)
    behind = await _claim_statements(storage_url, 1000)

    assert alone[0] == behind[0] == 10
    assert behind[1] <= alone[1]
