"""What a handler or a worker sends beside its result is bounded, wherever the worker is."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import App, Context
from perdure.core.run.bounds import MAX_OUTPUT_BYTES

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
