"""A filter means the same in Python, as a flag and as a query parameter."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from command import Shell
from perdure import App
from perdure.engine.operators.bulk import TASK
from perdure.web.models.requests import RunWords
from web_kit import dead_letter

FILTERS: dict[str, tuple[str, ...]] = {
    "status": ("queued,dead_lettered", "succeeded"),
    "task": ("double",),
    "queue": ("numbers",),
    "tag": ("team=red",),
    "batch_id": ("none",),
    "schedule_id": ("none",),
    "parent_id": (f"run_{0:032x}",),
    "since": ("1h", "0s"),
    "created_after": ("2030-01-01T00:00:00Z", "1h"),
    "created_before": ("2100-01-01T00:00:00Z", "2100-01-01", "1h"),
    "finished_after": ("2020-01-01T00:00:00Z", "2020-01-01T00:00", "1h"),
    "finished_before": ("2020-01-01T00:00:00Z", "1h"),
    "failure_kind": ("error",),
    "fingerprint": ("none",),
    "text": ("fragile",),
}
"""Values of every filter. Every one of them is read by all three interfaces."""

FLAGS = {"batch_id": "--batch", "schedule_id": "--schedule", "parent_id": "--parent"}


def test_every_query_parameter_is_compared() -> None:
    assert set(FILTERS) == set(RunWords.__struct_fields__)


async def test_python_flags_and_query_parameters_find_the_same_runs(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    await dead_letter(shop_app)
    await shop_app.tasks["double"].options(tags={"team": "red"}).trigger(1)

    found = {
        f"{name}={value}": await _everywhere(shop_app, client, shell, name, value)
        for name, values in FILTERS.items()
        for value in values
    }

    assert {key: ids for key, ids in found.items() if len(set(map(tuple, ids))) > 1} == {}
    assert [len(found[key][0]) for key in ("status=queued,dead_lettered", "since=1h")] == [2, 2]
    assert [len(found[f"finished_after={FILTERS['finished_after'][0]}"][0])] == [1]


async def _everywhere(
    app: App, client: httpx.AsyncClient, shell: Shell, name: str, value: str
) -> list[list[str]]:
    """Return the ids of the runs that each interface finds."""
    wanted: dict[str, Any] = {name: value}
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    listed = await asyncio.to_thread(
        shell.perdure, "runs", "list", flag, value, "--json", PERDURE_URL=app.url
    )
    told = (await client.get("/v1/runs", params=wanted)).json()
    return [
        [run.id for run in (await app.runs.list(**wanted)).runs],
        [run["id"] for run in listed.json["runs"]],
        [run["id"] for run in told["items"]],
    ]


async def test_a_flag_for_statuses_may_be_repeated(shop_app: App, shell: Shell) -> None:
    await dead_letter(shop_app)
    await shop_app.tasks["double"].trigger(1)

    listed = await asyncio.to_thread(
        shell.perdure,
        *("runs", "list", "--status", "queued", "--status", "dead_lettered", "--json"),
        PERDURE_URL=shop_app.url,
    )

    assert len(listed.json["runs"]) == 2


@pytest.mark.parametrize("value", ["1h", "2020-01-01T00:00:00Z"])
async def test_an_order_keeps_the_instant_that_since_meant(
    shop_app: App, client: httpx.AsyncClient, value: str
) -> None:
    await shop_app.tasks["double"].trigger(1)
    body = {"action": "cancel", "filter": {"since": value}, "expect": 5}

    order = (await client.post("/v1/runs:bulk", json=body)).json()
    run = await shop_app.runs.get(order["run_id"])

    assert run.task == TASK
    assert order["matched"] == 1
    assert set(run.payload["order"]["words"]) == {"created_after"}
