"""What a handler or a worker sends beside its result is bounded, wherever the worker is."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from perdure import App, Context
from perdure.core.bounds import MAX_OUTPUT_BYTES
from perdure.core.decide import decide_success
from perdure.errors import InvalidInput
from remote_kit import Hall, world_at
from storage_kit import claim_one, create, history, now, reload, step, token_of

TIMEOUT_S = 20


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


TOO_MUCH = [nested(100), nested(5000), {"text": "x" * MAX_OUTPUT_BYTES}]


@pytest.mark.parametrize("output", TOO_MUCH, ids=["deep", "very deep", "large"])
async def test_an_output_that_cannot_be_kept_is_left_out_and_the_result_stays(
    storage_url: str, output: dict[str, Any]
) -> None:
    app = App(storage_url)

    @app.task
    async def talk(ctx: Context) -> str:
        ctx.output = output
        return "done"

    async with app, app.worker(concurrency=1):
        run = await talk.trigger()
        assert await run.result(TIMEOUT_S) == "done"
        [attempt] = await app.runs.attempts(run.id)

    assert attempt.output is not None
    assert attempt.output.keys() == {"left_out"}


@pytest.mark.parametrize("output", [nested(100), nested(400)], ids=["deep", "very deep"])
async def test_a_worker_elsewhere_cannot_store_what_is_too_deep_to_be_read(
    hall: Hall, storage_url: str, output: dict[str, Any]
) -> None:
    async with world_at(hall, storage_url) as world:
        remote = await world.storage("work", "trigger")
        await create(world.beside)
        run = await claim_one(remote)
        honest = step(run, decide_success(run, token_of(run), now()))
        [event] = honest.events
        [outcome] = await remote.commit([replace(honest, events=(replace(event, output=output),))])

        assert isinstance(outcome, InvalidInput)
        assert (await reload(world.beside, run)).sequence == run.sequence
        assert len(await history(world.beside, run)) == run.sequence
