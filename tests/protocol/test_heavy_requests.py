"""Large requests of workers: worked on off the event loop, in slices, and a few at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import httpx
import msgspec
import pytest_asyncio

from perdure import App
from perdure.storage.contract.wire_errors import PROTOCOL
from perdure.telemetry.redactor import Redaction
from perdure.web.api import LOCAL, Api
from perdure.web.offload import MAX_INLINE_BYTES, Offload, json_size
from perdure.web.operations.environments import CATALOGUE_READERS
from perdure.web.worker.registry import FEW_RUNS, READERS
from waiting import MAX_WAIT_S
from web_kit import client_of, make_key, shop
from worker_kit import REQUESTS, a_claim

T = TypeVar("T")

LARGE = "x" * (2 * MAX_INLINE_BYTES)


class Worked(Offload):
    """Records the threads on which the server works, and on how many bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.loop_thread = threading.get_ident()
        self.pieces: list[tuple[bool, int]] = []
        self.redacted: list[tuple[bool, int]] = []

    async def run(self, key: str, size: int, function: Callable[..., T], *arguments: Any) -> T:
        def recorded(*given: Any) -> T:
            self.pieces.append((self._is_on_loop, size))
            return function(*given)

        return await super().run(key, size, recorded, *arguments)

    def redact(self, message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.redacted.append((self._is_on_loop, len(message) + json_size(fields)))
        return Redaction()(message, fields)

    @property
    def _is_on_loop(self) -> bool:
        return threading.get_ident() == self.loop_thread


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    opened = shop(storage_url)

    @opened.task
    async def keep(text: str) -> str:
        return text

    async with opened:
        yield opened


@pytest_asyncio.fixture
async def worked() -> AsyncIterator[Worked]:
    offload = Worked()
    yield offload
    offload.close()


@pytest_asyncio.fixture
async def api(app: App, worked: Worked) -> AsyncIterator[Api]:
    async with Api(App(app.url, redact=worked.redact), LOCAL) as opened:
        opened.offload.close()
        opened.offload = worked
        yield opened


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api) as opened:
        await ask(opened, "heartbeat", REQUESTS["heartbeat"])
        yield opened


async def ask(client: httpx.AsyncClient, operation: str, body: Any) -> Any:
    headers = {"content-type": "application/json", "x-perdure-protocol": str(PROTOCOL)}
    content = msgspec.json.encode(body)
    answer = await client.post(f"/v1/worker/{operation}", content=content, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def claim(app: App, client: httpx.AsyncClient) -> Any:
    """Trigger a run and claim it."""
    await app.tasks["keep"].trigger("a")
    found = await ask(client, "claim", a_claim(tasks=("keep",)))
    [run] = found["runs"]
    return run


def a_large_report(run: Any) -> dict[str, Any]:
    return {
        "run_id": run["id"], "token": run["lease"]["token"], "attempt": 1,
        "ending": {"type": "returned", "result": LARGE}, "output": {"text": LARGE},
    }  # fmt: skip


async def test_a_large_report_is_decided_off_the_event_loop(
    app: App, client: httpx.AsyncClient, worked: Worked
) -> None:
    reports = [a_large_report(await claim(app, client)) for _ in range(3)]
    worked.pieces.clear()

    answer = await ask(client, "report", {"reports": reports})

    decided = [size for _, size in worked.pieces if size < 3 * 2 * len(LARGE)]
    assert [it["type"] for it in answer["outcomes"]] == ["recorded"] * 3
    assert sum(decided) >= 3 * 2 * len(LARGE)
    assert [size for on_loop, size in worked.pieces if on_loop and size > MAX_INLINE_BYTES] == []


async def test_a_large_report_with_a_claim_is_decided_off_the_event_loop(
    app: App, client: httpx.AsyncClient, worked: Worked
) -> None:
    reports = [a_large_report(await claim(app, client))]
    worked.pieces.clear()

    claiming = {**msgspec.to_builtins(a_claim(tasks=("keep",))), "reports": reports}
    answer = await ask(client, "claim", claiming)

    large = [on_loop for on_loop, size in worked.pieces if size > 2 * len(LARGE)]
    assert [it["type"] for it in answer["outcomes"]] == ["recorded"]
    assert large == [False] * 3  # decoded, checked, decided


async def test_large_results_are_redacted_off_the_event_loop(
    app: App, client: httpx.AsyncClient, api: Api, worked: Worked
) -> None:
    run = await claim(app, client)
    await ask(client, "report", {"reports": [a_large_report(run)]})
    key = await make_key(app, "read")
    await api.keyring.refresh()
    worked.redacted.clear()

    async with client_of(api, key) as reader:
        answer = await ask(reader, "results", {"run_ids": [run["id"]]})

    assert answer["runs"][0]["result"] == LARGE
    assert max(size for on_loop, size in worked.redacted if not on_loop) > len(LARGE)
    assert [size for on_loop, size in worked.redacted if on_loop and size > len(LARGE)] == []


async def test_while_others_read_the_catalogue_a_declaration_waits_and_a_renewal_does_not(
    app: App, client: httpx.AsyncClient, api: Api
) -> None:
    turns = api.home.catalogue_turns
    for _ in range(CATALOGUE_READERS):
        await turns.acquire()

    waiting = [
        asyncio.create_task(ask(client, name, REQUESTS[name])) for name in ("declare", "tasks")
    ]
    for _ in range(3):
        await asyncio.wait_for(ask(client, "renew", REQUESTS["renew"]), MAX_WAIT_S)
    has_waited = not any(it.done() for it in waiting)
    for _ in range(CATALOGUE_READERS):
        turns.release()
    await asyncio.gather(*waiting)

    assert has_waited


async def test_while_others_hold_many_runs_a_large_request_waits_and_a_small_one_does_not(
    app: App, client: httpx.AsyncClient, api: Api
) -> None:
    """A run may have a megabyte, and a key hundreds of requests under way."""
    run = await claim(app, client)
    report = a_large_report(run) | {"ending": {"type": "returned", "result": 1}}
    lease = {"run_id": run["id"], "token": run["lease"]["token"]}
    others = [{**lease, "run_id": f"run_{n:032x}"} for n in range(FEW_RUNS)]
    unknown = [{**report, **it} for it in others]
    said = {**lease, "attempt": 1}
    async with AsyncExitStack() as stack:
        for _ in range(READERS):
            await stack.enter_async_context(api.home.registry.turn(FEW_RUNS + 1))
        many = {
            "renew": {**REQUESTS["renew"], "leases": [lease, *others]},
            "log": {"batches": [said, *({**said, **it} for it in others)]},
            "report": {"reports": [*unknown, unknown[0]]},
        }
        waiting = [asyncio.create_task(ask(client, name, body)) for name, body in many.items()]
        few = {**REQUESTS["renew"], "leases": [lease]}
        renewed = [await asyncio.wait_for(ask(client, "renew", few), MAX_WAIT_S) for _ in range(3)]
        await ask(client, "report", {"reports": [report]})
        have_waited = not any(it.done() for it in waiting)
    await asyncio.gather(*waiting)

    assert have_waited
    assert all(run["id"] in it["renewed"] for it in renewed)
