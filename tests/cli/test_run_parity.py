"""What a shell says about runs, dead letters and leases, as Python and the API do."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import httpx

from command import Answer, Shell
from perdure import App, Context
from situations import leased
from waiting import MAX_WAIT_S
from web_kit import dead_letter


async def call(shell: Shell, app: App, *arguments: str) -> Answer:
    return await asyncio.to_thread(shell.perdure, *arguments, PERDURE_URL=app.url)


async def test_payloads_and_results_print_as_json(storage_url: str, shell: Shell) -> None:
    async with App(storage_url) as app:

        @app.task
        async def echo(ctx: Context, value: dict[str, object]) -> object:
            ctx.log.info("seen", value=value)
            return value.get("answer")

        payload: dict[str, dict[str, object]] = {
            "value": {"ok": True, "none": None, "text": "it's ü", "answer": False}
        }
        async with app.worker(concurrency=1):
            run = await echo.options(tags={"a": "b"}, meta={"list": [None]}).trigger(**payload)
            await run.result(MAX_WAIT_S)
        shown = await call(shell, app, "runs", "show", run.id)
        logs = await call(shell, app, "runs", "logs", run.id)

    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in shown.out.splitlines()}
    assert json.loads(facts["payload"]) == payload
    assert (facts["result"], facts["tags"]) == ("false", '{"a": "b"}')
    assert facts["meta"] == '{"list": [null]}'
    assert f"value={json.dumps(payload['value'], ensure_ascii=False)}" in logs.out


async def test_progress_is_the_same_in_every_interface(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    quiet = await shop_app.tasks["double"].trigger(1)

    @shop_app.task
    async def walk(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")

    async with shop_app.worker(concurrency=1):
        run = await walk.trigger()
        await run.result(MAX_WAIT_S)
    shown = await call(shell, shop_app, "runs", "progress", run.id)
    data = await call(shell, shop_app, "runs", "progress", run.id, "--json")
    none = await call(shell, shop_app, "runs", "progress", quiet.id)

    assert shown.out.startswith("25% a quarter (attempt 1, ")
    assert data.json == (await client.get(f"/v1/runs/{run.id}/progress")).json()
    assert none.out == f"No attempt at {quiet.id} has reported progress.\n"


async def test_a_shell_frees_an_idempotency_key(shop_app: App, shell: Shell) -> None:
    once = shop_app.tasks["double"].options(idempotency_key="once")
    first = await once.trigger(1)

    freed = await call(
        shell, shop_app, "runs", "reset-idempotency-key", first.id, "--reason", "wrong"
    )
    second = await once.trigger(1)
    entries = await call(shell, shop_app, "audit", "--entries", "--json")

    assert freed.out == f"The idempotency key of {first.id} is free.\n"
    assert second.created
    written = [json.loads(line) for line in entries.out.splitlines()]
    assert [(it["action"], it["reason"]) for it in written] == [("reset_idempotency_key", "wrong")]


async def test_a_shell_wakes_a_waiting_run(shop_app: App, shell: Shell) -> None:
    @shop_app.task
    async def patient(ctx: Context) -> None:
        ctx.wait_for("approval")

    async with shop_app.worker(concurrency=1):
        run = await patient.trigger()
        async with asyncio.timeout(20):
            while (await run.get()).status != "waiting":
                await shop_app.clock.sleep(timedelta(milliseconds=5))
    woken = await call(shell, shop_app, "runs", "wake", run.id)

    assert woken.out == f"{run.id} is queued.\n"


async def test_a_fingerprint_is_shown_and_finds_the_failures_alike(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    run_id = await dead_letter(shop_app)
    run = await shop_app.runs.get(run_id)
    assert run.failure is not None
    fingerprint = run.failure.fingerprint

    shown = await call(shell, shop_app, "runs", "show", run_id)
    letter = await call(shell, shop_app, "dead-letters", "show", run_id)
    told = (await client.get(f"/v1/runs/{run_id}")).json()
    found = [
        await call(shell, shop_app, "dead-letters", "list", "--json", "--fingerprint", given)
        for given in (fingerprint, "other")
    ]

    assert fingerprint in shown.out
    assert fingerprint in letter.out
    assert told["failure"]["fingerprint"] == fingerprint
    assert [len(answer.json["dead_letters"]) for answer in found] == [1, 0]


async def test_the_leases_of_a_worker_are_the_same_in_every_interface(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    run = await shop_app.tasks["double"].trigger(1)
    await leased(shop_app, tasks=("double",))

    listed = await call(shell, shop_app, "workers", "leases", "worker-1", "--json")
    shown = await call(shell, shop_app, "workers", "leases", "worker-1")
    told = (await client.get("/v1/workers/worker-1/leases")).json()["items"]

    assert [held.id for held in await shop_app.workers.leases("worker-1")] == [run.id]
    assert [held["id"] for held in listed.json] == [held["id"] for held in told] == [run.id]
    assert run.id in shown.out
