"""A run that has a retry says so, in a shell and over HTTP, and is retried again only on demand."""

from __future__ import annotations

import pytest
import pytest_asyncio

from command import Shell
from perdure import App, Fail, Retry
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S
from web_kit import calling


async def failed_run(url: str) -> str:
    """The id of a run that has failed and has no retry."""
    app = App(url)

    @app.task(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise Fail("never", retryable=False)

    async with app, app.worker():
        run = await fails.trigger()
        with pytest.raises(RunFailed):
            await run.result(timeout=MAX_WAIT_S)
    return run.id


@pytest_asyncio.fixture
async def run_id(shell: Shell) -> str:
    return await failed_run(shell.url)


async def test_a_shell_needs_again_for_a_second_retry(run_id: str, shell: Shell) -> None:
    first = shell.perdure("runs", "retry", run_id, "--json")
    refused = shell.perdure("runs", "retry", run_id)
    second = shell.perdure("runs", "retry", run_id, "--again", "--json")

    assert (first.code, refused.code, second.code) == (0, 1, 0), refused.err
    assert first.json["id"] in refused.err
    assert refused.err.endswith("look at that one, or use --again\n")
    assert second.json["id"] not in (run_id, first.json["id"])


async def test_a_shell_shows_the_retry_of_a_run(run_id: str, shell: Shell) -> None:
    before = shell.perdure("runs", "show", run_id, "--json").json
    retry = shell.perdure("runs", "retry", run_id, "--json").json["id"]
    shown = shell.perdure("runs", "show", run_id, "--json").json
    story = shell.perdure("runs", "show", run_id).out
    [listed] = shell.perdure("runs", "list", "--status", "failed", "--json").json["runs"]

    assert (before["retried_as"], shown["retried_as"]) == (None, retry)
    assert (listed["id"], listed["retried_as"]) == (run_id, retry)
    assert retry in story


async def test_bulk_retries_skip_retried_runs_and_take_no_again(run_id: str, shell: Shell) -> None:
    shell.perdure("runs", "retry", run_id)

    refused = shell.perdure("runs", "retry", "--status", "failed", "--again", "--yes")

    assert (refused.code, "--again is for one run" in refused.err) == (2, True)


async def test_over_http_a_second_retry_needs_again(storage_url: str) -> None:
    run_id = await failed_run(storage_url)
    async with calling(storage_url) as client:
        path = f"/v1/runs/{run_id}"
        first = await client.post(f"{path}/retry", json={})
        refused = await client.post(f"{path}/retry", json={})
        second = await client.post(f"{path}/retry", json={"again": True})
        shown = (await client.get(path)).json()
        listed = (await client.get("/v1/runs", params={"status": "failed"})).json()

    assert (first.status_code, refused.status_code, second.status_code) == (201, 409, 201)
    assert refused.json()["type"].endswith("already-retried")
    assert first.json()["id"] in refused.json()["detail"]
    assert refused.json()["detail"].endswith('look at that one, or send "again": true')
    assert shown["retried_as"] == first.json()["id"]
    assert [it["retried_as"] for it in listed["items"]] == [first.json()["id"]]
