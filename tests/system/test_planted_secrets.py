"""Secrets planted wherever one can be put, and looked for wherever somebody could read them."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from command import PERDURE, Shell
from endpoints import Asked, Endpoint, answering
from perdure.cli.main import main
from raw import TABLES, execute
from waiting import MAX_WAIT_S
from web_kit import Server, serving

TESTS = Path(__file__).resolve().parents[1]
PLACES = (
    *("payload", "note", "tag", "meta", "reason", "schedule", "manifest", "queue_reason"),
    *("error", "result", "log", "progress", "shell", "header", "literal", "target_url", "idle"),
    *("webhook_url", "webhook_header", "cookie", "request_header", "query", "bad_body", "bearer"),
)
PLANTED = {place: f"canary-{place.replace('_', '-')}-7f3a91" for place in PLACES}
"""Each has its own, so that one that turns up tells where it came from."""
SIGNING = "whsec_Y2FuYXJ5LXNpZ25pbmctN2YzYTkxLWFuZC1hLWJpdA=="
STORED = {"payload", "note", "tag", "meta", "reason", "schedule", "manifest", "result"}
"""Kept as they are: whoever reads the database reads them."""


class Found(dict[str, str]):
    """What can be read, by where."""

    def leaks(self, secrets: Mapping[str, str]) -> dict[str, list[str]]:
        found = {
            where: [name for name, secret in secrets.items() if secret in text]
            for where, text in self.items()
        }
        return {where: names for where, names in found.items() if names}


class Scene:
    """A server, a worker and an endpoint, all of them careless."""

    def __init__(self, shell: Shell, server: Server, client: httpx.AsyncClient, key: str) -> None:
        self.shell = shell
        self.address = server.address
        self.client = client
        self.key = key
        self.runs: dict[str, str] = {}

    async def trigger(self, task: str, payload: dict[str, Any]) -> None:
        body = {
            "task": task,
            "payload": payload,
            "tags": {"token": PLANTED["tag"]},
            "meta": {"password": PLANTED["meta"]},
        }
        headers = {"cookie": PLANTED["cookie"], "x-api-token": PLANTED["request_header"]}
        answer = await self.client.post("/v1/runs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        self.runs[task] = answer.json()["id"]

    async def until_ended(self) -> None:
        for run_id in self.runs.values():
            await eventually(partial(self._has_ended, run_id))

    async def _has_ended(self, run_id: str) -> bool:
        shown = await self.client.get(f"/v1/runs/{run_id}")
        return shown.json()["finished_at"] is not None

    async def cli(self, *words: str) -> str:
        """Beside the database and from afar: what it says, all of it."""
        beside = {"PERDURE_URL": self.shell.url, "PERDURE_API_KEY": ""}
        afar = {"PERDURE_URL": self.address, "PERDURE_API_KEY": self.key}
        answers = [
            await asyncio.to_thread(CliRunner().invoke, main, words, env=env)
            for env in (beside, afar)
        ]
        return "\n".join(it.output for it in answers)


def environment(directory: Path, endpoint: Endpoint) -> dict[str, str]:
    """What server and worker are started with."""
    leaks = {f"LEAK_{place.upper()}": secret for place, secret in PLANTED.items()}
    return {
        **leaks,
        "ENDPOINT": endpoint.url,
        "SPANS": str(directory / "spans.jsonl"),
        "PERDURE_HTTP_ALLOW": "127.0.0.0/8",
        "PERDURE_LOG_LEVEL": "DEBUG",
        "WEBHOOK_SIGNS": SIGNING,
        "WEBHOOK_AUTH": PLANTED["webhook_header"],
        "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}",
    }


async def refuse(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An endpoint that takes nothing, and repeats all it was told."""
    await answering(400, {"no": "thanks", "headers": asked.headers})(asked, writer)


@asynccontextmanager
async def scene(directory: Path, endpoint: Endpoint) -> AsyncIterator[Scene]:
    shell, around = Shell(directory), environment(directory, endpoint)
    with (directory / "worker.log").open("wb") as log, (directory / "worker.out").open("wb") as out:
        worker = await asyncio.create_subprocess_exec(
            *PERDURE, "worker", "leaky_app:app", "--json",
            cwd=directory, env=shell.environ(**around), stdout=out, stderr=log,
        )  # fmt: skip
    try:
        await eventually(partial(_is_ready, directory))
        key = await asyncio.to_thread(_make_key, shell)
        headers = {"authorization": f"Bearer {key}"}
        with serving(shell.url, directory, files=None, **around) as server:
            async with httpx.AsyncClient(base_url=server.address, headers=headers) as client:
                yield Scene(shell, server, client, key)
    finally:
        worker.terminate()
        await asyncio.wait_for(worker.wait(), MAX_WAIT_S)


async def _is_ready(directory: Path) -> bool:
    return "worker ready" in (directory / "worker.log").read_text()


def _make_key(shell: Shell) -> str:
    scopes = ("--scope", "read", "--scope", "trigger", "--scope", "operate", "--scope", "admin")
    key: str = shell.perdure("keys", "create", "all", *scopes, "--json").json["key"]
    return key


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(3 * MAX_WAIT_S):
        while not await holds():  # noqa: ASYNC110  # other processes have no event to wait for
            await asyncio.sleep(0.05)


async def plant(scene: Scene, endpoint: Endpoint) -> None:
    """Everything that happens."""
    client = scene.client
    hook = {
        "name": "told",
        "url": f"{endpoint.url}?token={PLANTED['webhook_url']}",
        "signing_secrets": ["WEBHOOK_SIGNS"],
        "headers": {"Authorization": {"secret": "WEBHOOK_AUTH"}},
        "with_payload": True,
    }
    assert (await client.post("/v1/webhooks", json=hook)).status_code == 201
    note = f"Authorization: Bearer {PLANTED['note']}"
    await scene.trigger("leak", {"password": PLANTED["payload"], "note": note})
    await scene.trigger("fail", {"password": PLANTED["payload"]})
    await scene.trigger("speak", {})
    await scene.trigger("ask", {})
    await scene.until_ended()
    reason = {"reason": f"their password={PLANTED['reason']}"}
    await client.post(f"/v1/runs/{scene.runs['fail']}/rerun", json=reason)
    await client.post(f"/v1/runs/{scene.runs['leak']}/cancel", json=reason)
    queue_reason = {"reason": f"token={PLANTED['queue_reason']}"}
    await client.post("/v1/queues/leaks/pause", json=queue_reason)
    daily = {"task": "leak", "cadence": {"every": 86400}}
    secretive = {"password": PLANTED["schedule"], "note": "x"}
    await client.put("/v1/schedules/daily", json=daily | {"payload": secretive})
    payload = f"{{password: {PLANTED['manifest']}, note: x}}"
    text = f"{{name: weekly, every: 7d, task: leak, payload: {payload}}}"
    for dry_run in (True, False):
        body = {"files": [{"name": "a.yaml", "text": text}], "dry_run": dry_run}
        assert (await client.post("/v1/schedules:apply", json=body)).status_code == 200
    await client.get("/v1/runs", params={"token": PLANTED["query"]})
    await client.get("/v1/runs", headers={"authorization": f"Bearer {PLANTED['bearer']}"})
    odd = {"content-type": "application/json"}
    await client.post("/v1/runs", content=f"{{{PLANTED['bad_body']}", headers=odd)

    async def is_told() -> bool:
        return any("webhook-id" in it.headers for it in endpoint.asked)

    await eventually(is_told)


OF_RUNS = ("", "/events", "/attempts", "/logs", "/why", "/bundle")
PATHS = (
    *("/v1/runs", "/v1/tasks", "/v1/queues", "/v1/limits", "/v1/dead-letters", "/v1/workers"),
    *("/v1/stats", "/v1/schedules", "/v1/schedules/daily", "/v1/webhooks", "/v1/webhooks/told"),
    *("/v1/webhooks/told/deliveries", "/v1/keys", "/v1/audit", "/metrics", "/healthz", "/readyz"),
)
COMMANDS = (
    *("runs list", "runs show RUN", "runs events RUN", "runs attempts RUN", "runs logs RUN"),
    *("runs bundle RUN", "why RUN", "dead-letters list", "schedules list", "schedules show daily"),
    *("queues list", "workers list", "webhooks list", "webhooks show told", "doctor", "audit"),
    *("audit --log", "config"),
)


async def read(scene: Scene) -> Found:
    """Everything that anybody could read."""
    found = Found()
    for path in PATHS:
        found[f"GET {path}"] = (await scene.client.get(path)).text
    for task, run_id in scene.runs.items():
        for path in OF_RUNS:
            shown = await scene.client.get(f"/v1/runs/{run_id}{path}")
            assert shown.status_code == 200
            found[f"GET {task}{path}"] = shown.text
    for command in COMMANDS:
        for task in ("fail", "speak") if "RUN" in command else ("",):
            words = command.replace("RUN", scene.runs.get(task, "")).split()
            for flags in ([], ["--json"]):
                found[f"perdure {command} {task} {flags}"] = await scene.cli(*words, *flags)
    found["stream"] = await _stream(scene)
    for name in ("server.log", "worker.log", "worker.out", "spans.jsonl"):
        found[name] = (scene.shell.directory / name).read_text()
    [rows] = execute(scene.shell.url, "SELECT body FROM perdure_audit")
    found["audit rows"] = json.dumps(rows)
    return found


async def _stream(scene: Scene) -> str:
    """From the beginning of the feed."""
    async with scene.client.stream("GET", "/v1/stream", headers={"last-event-id": "0"}) as stream:
        async for chunk in stream.aiter_text():
            if "run.dead_lettered" in chunk:
                return chunk
    raise AssertionError("the stream ended")


@pytest.mark.system
async def test_no_secret_is_read_where_it_was_not_put(tmp_path: Path) -> None:
    async with Endpoint(refuse) as endpoint, scene(tmp_path, endpoint) as there:
        await plant(there, endpoint)
        found = await read(there)
        secrets = PLANTED | {"key": there.key, "signing": SIGNING}

    assert found.leaks(secrets) == {}
    posted = [it for it in endpoint.asked if "webhook-id" in it.headers]
    hidden = {name: secret for name, secret in secrets.items() if name != "webhook_header"}
    bodies = Found(body="".join(it.body.decode() for it in posted))
    assert bodies.leaks(hidden) == {}
    _check_that_it_could_fail(there, endpoint, found)


def _check_that_it_could_fail(scene: Scene, endpoint: Endpoint, found: Found) -> None:
    """Each secret was where it belongs, and each place that was looked at had something in it."""
    database = json.dumps(
        execute(scene.shell.url, *(f"SELECT * FROM perdure_{it}" for it in TABLES)), default=str
    )
    assert {place for place in STORED if PLANTED[place] not in database} == set()
    sent = str([it.headers for it in endpoint.asked])
    assert all(PLANTED[it] in sent for it in ("header", "literal", "webhook_header"))
    assert all(PLANTED[it] in str([a.path for a in endpoint.asked]) for it in ("target_url",))
    silent = {where for where, text in found.items() if not text.strip()}
    assert silent <= {"worker.out", *(it for it in found if it.startswith("perdure runs logs"))}
    said = "".join(found.values())
    assert len(re.findall(r"\[redacted\]", said)) > 100
    assert "exception.message" in found["spans.jsonl"]
    assert "failed: ValueError: refused: password=[redacted]" in found["worker.log"]
