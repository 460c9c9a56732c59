"""Requests that are as heavy as a server accepts, and the CPU time of its longest callback.

`python tests/loop_stress.py URL` fills the migrated database at URL with runs of a megabyte each,
serves it with `loop_cpu.py`, sends one request of every heavy kind, and ends with an error if a
callback of the event loop used more than 250 ms of CPU.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

import loop_cpu
from loop_cpu import LIMIT_VARIABLE, MAX_CALLBACK_CPU_S, read_report, resident_bytes
from perdure import App
from perdure.engine.runtime.ids import make_token
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from waiting import MAX_WAIT_S
from web_kit import _Log
from worker_kit import REQUESTS, a_claim, a_task

MEGABYTE = ("the quick brown fox: jumps over lazy=dogs; " * 25_000)[:1_000_000]
RUNS = 100
REPORTED_CPU_S = 0.02
PROTOCOL_HEADERS = {PROTOCOL_HEADER: str(PROTOCOL)}


class HeavyRequest(NamedTuple):
    name: str
    method: str
    path: str
    body: Any = None


class MeasuredServer(NamedTuple):
    address: str
    report: Path
    pid: int


async def fill(url: str) -> str:
    """Trigger large runs and finish one of them. Returns its id."""
    app = App(url)

    @app.task
    async def keep(text: str, items: list[dict[str, int]] | None = None) -> str:
        return text

    async with app:
        runs = [await keep.trigger(MEGABYTE) for _ in range(RUNS)]
        async with app.worker(concurrency=2):
            await runs[0].result(120)
    return runs[0].id


@contextmanager
def serve_measured(url: str, directory: Path) -> Iterator[MeasuredServer]:
    """`perdure server` in a process of its own, whose callbacks are measured."""
    report = directory / "report"
    command = [sys.executable, loop_cpu.__file__, str(report), "server", "--json", "--port", "0"]
    environ = os.environ | {LIMIT_VARIABLE: str(REPORTED_CPU_S)}
    process = subprocess.Popen(
        [*command, "--url", url], stderr=subprocess.PIPE, text=True, env=environ
    )
    log = _Log(process, directory / "server.log")
    try:
        yield MeasuredServer(log.address(), report, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=MAX_WAIT_S)
        log.join()


def heavy_requests(run_id: str) -> Iterator[HeavyRequest]:
    for path in ("", "/events", "/attempts", "/bundle", "/why"):
        yield HeavyRequest(f"a large run{path}", "GET", f"/v1/runs/{run_id}{path}")
    yield HeavyRequest("1,000 large runs", "GET", "/v1/runs?limit=1000")
    for name, payload in (
        ("text", {"text": MEGABYTE}),
        ("numbers", {"text": "", "items": [1] * 300_000}),
        ("objects", {"text": "", "items": [{}] * 220_000}),
    ):
        item = {"task": "keep", "payload": payload}
        yield HeavyRequest(f"trigger, a megabyte of {name}", "POST", "/v1/runs", item)
        yield HeavyRequest(f"batch of {name}", "POST", "/v1/runs:batch", {"runs": [item] * 7})
    meta = {"task": "keep", "meta": {"a": [{}] * 1_900_000}}
    yield HeavyRequest("meta of 8 MB", "POST", "/v1/runs", meta)
    body = {"files": [{"name": "all.yaml", "text": _manifest(1000)}]}
    yield HeavyRequest("manifest of 1,000", "POST", "/v1/schedules:apply", body)
    yield HeavyRequest("the same again", "POST", "/v1/schedules:apply", body)
    body = {"files": [{"name": "all.yaml", "text": _manifest(10_000)}]}
    yield HeavyRequest("manifest of 10,000", "POST", "/v1/schedules:apply", body)
    yield HeavyRequest("1,000 schedules", "GET", "/v1/schedules?limit=1000")
    objects = {"text": "", "items": [{}] * 220_000}
    again = {"payload": objects}
    yield HeavyRequest("rerun with objects", "POST", f"/v1/runs/{run_id}/rerun", again)
    schedule = {"task": "keep", "cadence": {"every": 60}, "payload": objects}
    yield HeavyRequest("a schedule of objects", "PUT", "/v1/schedules/objects", schedule)
    yield HeavyRequest("the same schedule", "PATCH", "/v1/schedules/objects", again)
    misnamed = {"task": "keep", "payload": {"text": "", MEGABYTE: 1}}
    yield HeavyRequest("a name of a megabyte", "POST", "/v1/runs", misnamed)
    large = {"task": "keep", "cadence": {"every": 60}, "payload": {"text": MEGABYTE}}
    yield HeavyRequest("a large schedule", "PUT", "/v1/schedules/large", large)
    yield HeavyRequest("1,000 times", "GET", "/v1/schedules/large/preview?times=1000")


def heavy_worker_requests(address: str) -> Iterator[HeavyRequest]:
    """Those of the worker protocol. The runs to report on are claimed here."""
    worker = {**REQUESTS["heartbeat"], "tasks": [f"task_{number}" for number in range(5000)]}
    yield HeavyRequest("a worker of 5,000 tasks", "POST", "/v1/worker/heartbeat", worker)
    for count, schema in ((5000, None), (14, {"a": [{}] * 160_000})):
        tasks = [a_task(f"task_{number}", payload_schema=schema) for number in range(count)]
        body = {"tasks": msgspec.to_builtins(tasks)}
        yield HeavyRequest(f"declare {count} tasks", "POST", "/v1/worker/declare", body)
        yield HeavyRequest("the same again", "POST", "/v1/worker/declare", body)
    yield HeavyRequest("the catalogue", "POST", "/v1/worker/tasks", {})
    objects: list[dict[str, int]] = [{}] * 250_000
    for name, ending, output in (
        ("results", {"type": "returned", "result": objects}, None),
        ("outputs", {"type": "returned", "result": None}, {"items": objects}),
    ):
        claiming = msgspec.to_builtins(a_claim(tokens=_tokens(), tasks=("keep",)))
        claimed = httpx.post(
            f"{address}/v1/worker/claim", json=claiming, headers=PROTOCOL_HEADERS, timeout=120
        )
        reports = [
            {"run_id": run["id"], "token": run["lease"]["token"], "attempt": 1,
             "ending": ending, "output": output}
            for run in claimed.json()["runs"]
        ]  # fmt: skip
        body = {"reports": reports}
        yield HeavyRequest(f"{len(reports)} {name} of objects", "POST", "/v1/worker/report", body)
        run_ids = {"run_ids": [report["run_id"] for report in reports]}
        yield HeavyRequest(f"read the {name}", "POST", "/v1/worker/results", run_ids)


def _tokens() -> tuple[str, ...]:
    return tuple(make_token() for _ in range(7))


def _manifest(count: int) -> str:
    return "\n---\n".join(
        f"name: s{number}\ntask: keep\nevery: 60\npayload: {{text: a}}" for number in range(count)
    )


def main(url: str) -> int:
    run_id = asyncio.run(fill(url))
    with tempfile.TemporaryDirectory() as directory, serve_measured(url, Path(directory)) as server:
        reported = len(read_report(server.report))
        for request in chain(heavy_requests(run_id), heavy_worker_requests(server.address)):
            url = server.address + request.path
            answer = httpx.request(
                request.method, url, json=request.body, headers=PROTOCOL_HEADERS, timeout=120
            )
            new = read_report(server.report)[reported:]
            reported += len(new)
            longest = max((callback.cpu_s for callback in new), default=0.0)
            memory = resident_bytes(server.pid) // 1_000_000
            print(f"{request.name:32} {answer.status_code} {longest:6.3f} s {memory:5} MB")
        worst = max(callback.cpu_s for callback in read_report(server.report))
    print(f"longest callback: {worst:.3f} s of CPU")
    return int(worst > MAX_CALLBACK_CPU_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
