"""A measured server with something of every kind in it, and keys of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import msgspec

import loop_cpu
from fuzzing.known import Known
from fuzzing.values import NAMES, QUEUES, TASKS
from loop_cpu import Callback, read_report, resident_bytes
from perdure import App, every, secret
from perdure.engine.operators.keys import Keys
from perdure.engine.protocol.scope import Scope
from situations import a_worker
from waiting import MAX_WAIT_S
from web_kit import ADA, ALL, _Log, dead_letter, shop

FLAGS = ("--json", "--port", "0", "--rate", "none", "--require-keys")
STOP_TIMEOUT_S = 15
FILL_BATCHES, FILL_BATCH, FILL_BYTES = 50, 500, 3000
"""75 MB in 25,000 runs. The page cache of a connection is 64 MiB."""
SIGNING_SECRET = f"whsec_{'MDEy' * 10}"


class Target(msgspec.Struct):
    """A running server. `calls`: how many it was sent."""

    address: str
    pid: int
    report: Path
    keys: dict[str, str]
    known: Known
    calls: int = 0

    @property
    def memory_bytes(self) -> int:
        return resident_bytes(self.pid)

    def slow_callbacks(self, limit_s: float) -> list[Callback]:
        return [it for it in read_report(self.report) if it.cpu_s > limit_s]

    @property
    def longest_callback_s(self) -> float:
        return max((it.cpu_s for it in read_report(self.report)), default=0.0)


@contextmanager
def serve_furnished(url: str, directory: Path) -> Iterator[Target]:
    """`perdure server` in a process of its own, whose callbacks are measured."""
    keys, known = asyncio.run(_furnish(url))
    report = directory / "callbacks"
    command = [sys.executable, loop_cpu.__file__, str(report), "server", *FLAGS, "--url", url]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
    environ |= {"WEBHOOK_X": SIGNING_SECRET, "WEBHOOK_Y": SIGNING_SECRET}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=directory, env=environ
    )
    log = _Log(process, directory / "server.log")
    try:
        yield Target(log.address(), process.pid, report, keys, known)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # its database may have ended before
            process.wait(timeout=STOP_TIMEOUT_S)
        process.kill()
        process.wait()
        log.join()


def fill(target: Target) -> None:
    """Store and read more than SQLite keeps in memory, so that its page caches are full: what
    grows afterwards is the server."""
    runs = [{"task": "large", "delay": 86400, "payload": {"large": "0" * FILL_BYTES}}] * FILL_BATCH
    headers = {"authorization": f"Bearer {target.keys['all']}"}
    with httpx.Client(base_url=target.address, headers=headers, timeout=MAX_WAIT_S) as client:
        for _ in range(FILL_BATCHES):
            client.post("/v1/runs:batch", json={"runs": runs}).raise_for_status()
        query: dict[str, Any] = {"limit": 1000}
        while query.get("cursor", "first"):
            page = client.get("/v1/integrity/tally", params=query).raise_for_status().json()
            query["cursor"] = page["cursor"]


async def _furnish(url: str) -> tuple[dict[str, str], Known]:
    async with _shop(url, "other") as other:
        foreign = await Keys(other.runtime).create("foreign", ALL, by=ADA)
        await other.tasks["double"].trigger(1)
    async with _shop(url) as app:
        known = Known(await _make_names(app))
        keys = {"foreign": foreign.text, **await _make_keys(app, known)}
    known.kept_keys.add(foreign.key.id)
    return keys, known


def _shop(url: str, environment: str = "default") -> App:
    app = shop(url, environment)

    @app.task(queue="letters")
    async def anything(number: Any = None, message: Any = None, password: str = "") -> Any:
        return number

    @app.task
    async def large(large: Any = None, number: int = 0) -> Any:
        return large

    return app


async def _make_names(app: App) -> dict[str, Any]:
    runs = [(await app.tasks["double"].trigger(number)).id for number in range(4)]
    runs += [await dead_letter(app) for _ in range(3)]
    await app.schedules.create("nightly", every(60), "double", payload={"number": 1})
    await app.webhooks.create("posts", "http://192.0.2.1/", signing_secret=secret("WEBHOOK_X"))
    await a_worker(app, "worker_1")
    return {
        "run_id": runs, "task": TASKS, "queue": QUEUES, "operation": ["hello", "commit"],
        "letter": runs[4:], "schedule": NAMES, "webhook": NAMES, "worker": ["worker_1"],
    }  # fmt: skip


async def _make_keys(app: App, known: Known) -> dict[str, str]:
    """Keys by name: of each scope alone, of each two, of all, and one that was revoked."""
    scopes: dict[str, tuple[str, ...]] = {str(scope): (scope,) for scope in Scope}
    scopes |= {f"{one}_{two}": (one, two) for one, two in combinations(Scope, 2)}
    scopes |= dict.fromkeys(("all", "all_too", "revoked"), ALL)
    keys, texts = Keys(app.runtime), dict[str, str]()
    for name, of in scopes.items():
        new = await keys.create(name, of, by=ADA)
        texts[name] = new.text
        known.kept_keys.add(new.key.id)
        if name == "revoked":
            await keys.revoke(new.key.id, by=ADA)
    return texts
