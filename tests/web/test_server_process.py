"""`perdure server` and `perdure keys` as processes: where it listens, whom it serves, what it
never tells."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from command import Shell
from perdure.errors import RunFailed
from raw import TABLES, execute
from waiting import MAX_WAIT_S
from web_kit import serving, shop

CANARY = "hunter2-canary-7f3a"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    asyncio.run(_introduce(made.url))
    return made


async def _introduce(url: str) -> None:
    async with shop(url):
        pass


def test_only_this_machine_can_reach_a_server_by_default(shell: Shell) -> None:
    with serving(shell.url, shell.directory) as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert httpx.get(f"{server.address}/v1/runs").status_code == 200
        listening = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}

    port = f"{int(server.address.rpartition(':')[2]):04X}"
    assert [place for place in listening if place.endswith(f":{port}")] == [f"0100007F:{port}"]
    said = (shell.directory / "server.log").read_text()
    assert "there are no keys" in said
    assert "server stopped" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_for_others_does_not_start_without_keys(shell: Shell, host: str) -> None:
    refused = shell.perdure("server", "--host", host, "--port", "0")

    assert refused.code == 2
    assert "can be reached from elsewhere" in refused.err
    assert "perdure keys create" in refused.err


def test_a_server_for_others_starts_with_keys_and_asks_for_them(shell: Shell) -> None:
    made = shell.perdure("keys", "create", "ci", "--scope", "read", "--json").json
    with serving(shell.url, shell.directory, "--host", "0.0.0.0") as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        shut = httpx.get(f"{address}/v1/runs")
        opened = httpx.get(f"{address}/v1/runs", headers={"authorization": f"Bearer {made['key']}"})
        health = httpx.get(f"{address}/healthz")

    assert (shut.status_code, opened.status_code, health.status_code) == (401, 200, 200)


def test_keys_are_required_from_the_start_if_asked_for(shell: Shell) -> None:
    with serving(shell.url, shell.directory, "--require-keys") as server:
        assert httpx.get(f"{server.address}/v1/runs").status_code == 401


def test_a_port_that_is_taken_is_said_so(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = shell.perdure("server", "--port", str(taken.getsockname()[1]))

    assert refused.code == 2
    assert "cannot listen at 127.0.0.1" in refused.err
    assert "--port" in refused.err


def test_without_the_extra_a_server_says_what_to_install(shell: Shell) -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['perdure', 'server'];"
        "from perdure.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=shell.environ(),
        cwd=shell.directory,
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )

    assert done.returncode == 2
    assert "pip install 'perdure[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_keys_live_from_a_shell(shell: Shell) -> None:
    made = shell.perdure("keys", "create", "ci", "--scope", "read", "--expires", "90d", "--json")
    key_id = made.json["id"]
    rotated = shell.perdure("keys", "rotate", key_id, "--overlap", "1h", "--json")
    listed = shell.perdure("keys", "list")
    revoked = shell.perdure("keys", "revoke", key_id, "--reason", "gone")
    state = shell.perdure("keys", "list").out
    verified = shell.perdure("audit", "--log")

    assert rotated.json["key"] != made.json["key"]
    assert (made.json["scopes"], made.json["environment"]) == (["read"], "default")
    assert key_id in listed.out
    assert "valid" in listed.out
    assert made.json["key"] not in listed.out
    assert revoked.code == 0
    assert "revoked" in state
    assert verified.code == 0
    assert "entries=3 flaws=0" in verified.out


def test_bad_orders_about_keys_say_what_to_do(shell: Shell) -> None:
    scope = shell.perdure("keys", "create", "ci", "--scope", "reed")
    none = shell.perdure("keys", "create", "ci")
    unknown = shell.perdure("keys", "revoke", "nobody")
    expires = shell.perdure("keys", "create", "ci", "--scope", "read", "--expires", "soon")

    assert "did you mean read" in scope.err
    assert "--scope" in none.err
    assert "perdure keys list" in unknown.err
    assert "90d" in expires.err
    assert 0 not in (scope.code, none.code, unknown.code, expires.code)


def test_tampering_with_the_audit_log_is_found_from_a_shell(shell: Shell) -> None:
    for name in ("a", "b", "c"):
        shell.perdure("keys", "create", name, "--scope", "read")
    head = shell.perdure("audit", "--log", "--json").json["head"]
    execute(shell.url, "DELETE FROM perdure_audit WHERE position = 3")

    cut = shell.perdure("audit", "--log", "--anchor", head)
    execute(shell.url, "UPDATE perdure_audit SET body = replace(body, 'read', 'admin')")
    changed = shell.perdure("audit", "--log")

    assert (cut.code, changed.code) == (1, 1)
    assert "entry 3, is not there any more" in cut.out
    assert "entry 1 is not the one that was sealed there" in changed.out


# Secrets


@pytest.fixture
def leaky(tmp_path: Path) -> str:
    """A database whose run has failed with a secret in its error, and orders with one in them."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    asyncio.run(_leak(url))
    return url


async def _leak(url: str) -> None:
    async with shop(url) as app, app.worker(concurrency=1):
        run = await app.tasks["fragile"].trigger(f"refused: password={CANARY}")
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)


def test_a_secret_is_in_no_log_bundle_or_audit_row(
    leaky: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_SECRET", CANARY)
    shown: list[str] = []
    with (
        serving(leaky, tmp_path) as server,
        httpx.Client(base_url=server.address) as client,
    ):
        secret = {"password": CANARY, "number": 1}
        headers = {"x-api-token": CANARY, "cookie": f"session={CANARY}", "x-request-id": "r" * 8}
        asked = client.post("/v1/runs", json={"task": "double", "payload": secret}, headers=headers)
        run_id = asked.json()["id"]
        [failed] = client.get("/v1/runs", params={"status": "dead_letter"}).json()["items"]
        reason = {"reason": f"their token: {CANARY}"}
        client.post(f"/v1/runs/{run_id}/cancel", json=reason, headers=headers)
        client.post(f"/v1/runs/{run_id}/rerun", json={"payload": secret} | reason)
        client.post("/v1/runs", json={"task": "double", "payload": {"password": CANARY}})
        client.get("/v1/runs", headers={"authorization": f"Bearer {CANARY}"})
        client.post("/v1/runs", content=f"{{{CANARY}", headers={"content-type": "text/plain"})
        for path in ("", "/events", "/attempts", "/logs", "/why", "/bundle"):
            shown += [client.get(f"/v1/runs/{it}{path}").text for it in (run_id, failed["id"])]
        shown += [client.get(path).text for path in ("/v1/runs", "/v1/dead-letters", "/v1/audit")]
        shown += [client.get(path).text for path in ("/metrics", "/v1/workers", "/v1/tasks")]

    assert [text for text in shown if CANARY in text] == []
    [warning] = [it for it in caplog.get_records("setup") if it.name == "perdure.attempts"]
    assert "password=[redacted]" in warning.getMessage()
    assert CANARY not in (tmp_path / "server.log").read_text()
    [rows] = execute(leaky, "SELECT body FROM perdure_audit")
    assert len(rows) == 2
    assert CANARY not in json.dumps(rows)


def test_the_canary_is_where_it_belongs(leaky: str) -> None:
    """Or the test above could not fail."""
    everything = json.dumps(execute(leaky, *(f"SELECT * FROM perdure_{it}" for it in TABLES)))

    assert CANARY in everything


def test_an_app_is_served_by_the_server_of_another_process(shell: Shell) -> None:
    async def execute_here(run_id: str) -> object:
        async with shop(shell.url) as app, app.worker(concurrency=1):
            return await app.runs.handle(run_id).result(MAX_WAIT_S)

    with serving(shell.url, shell.directory) as server:
        body = {"task": "double", "payload": {"number": 21}}
        run_id = httpx.post(f"{server.address}/v1/runs", json=body).json()["id"]
        assert asyncio.run(execute_here(run_id)) == 42
        assert httpx.get(f"{server.address}/v1/runs/{run_id}").json()["result"] == 42
