"""Answers of the worker protocol have a bounded size, however large the stored runs are."""

from __future__ import annotations

import msgspec

from perdure.core.limits.admission import LimitScope
from perdure.core.run.run import Run
from perdure.engine.protocol.triggers import ResultsAnswer, ResultsRequest
from protocol_side import Side
from remote_kit import World
from storage_kit import claim_one, create, set_limit, stored, success

MEGABYTE = 1_000_000
MAX_BYTES = 8 * 1024 * 1024


def _bytes(runs: tuple[Run, ...]) -> int:
    return sum(len(bytes(run.payload_json)) for run in runs)


async def _large_runs(side: Side) -> None:
    for _ in range(12):
        await side.a_run(payload={"text": "x" * MEGABYTE})


async def test_a_claim_hands_over_large_runs_in_several_answers(side: Side) -> None:
    await _large_runs(side)

    first = await side.claim(20)
    second = await side.claim(20)

    assert len(first.runs) == 8
    assert _bytes(first.runs) <= MAX_BYTES
    assert first.next_claimable_at is not None
    assert first.next_claimable_at <= first.now
    assert len(second.runs) == 4


async def test_a_claim_under_a_limit_hands_over_large_runs_in_several_answers(side: Side) -> None:
    await set_limit(side.storage, LimitScope.QUEUE, "default", 100)
    await _large_runs(side)

    first = await side.claim(20)
    second = await side.claim(20)

    assert (len(first.runs), len(second.runs)) == (8, 4)


async def test_large_results_come_in_several_answers(world: World) -> None:
    ids = []
    for _ in range(12):
        await create(world.beside)
        run = await claim_one(world.beside)
        await stored(world.beside, success(run, "x" * MEGABYTE))
        ids.append(run.id)
    server = await world.server("work")

    first = await server.ask(ResultsRequest(run_ids=tuple(ids)), ResultsAnswer)
    second = await server.ask(ResultsRequest(run_ids=tuple(ids[8:])), ResultsAnswer)

    assert [run.id for run in first.runs] == ids[:8]
    assert first.next_id == ids[8]
    assert len(msgspec.json.encode(first)) <= MAX_BYTES
    assert ([run.id for run in second.runs], second.next_id) == (ids[8:], None)
