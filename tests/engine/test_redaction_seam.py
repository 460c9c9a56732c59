"""Every text about a run passes the redactor before it is stored: nothing is left in the database,
in a log or in an answer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

import perdure
from command import Shell
from endpoints import Asked, Endpoint
from fix_app import QUICK
from hook_kit import SECRET, SIGNED, Receiver, telling
from perdure import App, Context, Redaction, Retry, secret
from perdure.cli.output.answer import explained
from perdure.core.run.failure import MAX_MESSAGE
from perdure.engine.definition.task import Task
from perdure.engine.observability.log_writer import LONGEST_MESSAGE
from perdure.engine.operators.audit_log import AuditLog
from perdure.telemetry import table
from perdure.telemetry.record import RedactedException
from perdure.telemetry.redactor import OVERLAP_CHARS
from perdure.web.api import LOCAL, Api
from raw import TABLES, execute
from web_kit import client_of

ONCE = Retry(max_attempts=1)
CANARY = "canary-5e1f0a77-and-longer"
LOOPBACK = replace(QUICK, http_allow="loopback")


def database_text(url: str) -> str:
    """All rows of all tables."""
    rows = execute(url, *(f"SELECT * FROM perdure_{it}" for it in TABLES))
    return json.dumps(rows, default=str)


def halves_shown(text: str, planted: str = CANARY) -> list[str]:
    middle = len(planted) // 2
    return [half for half in (planted[:middle], planted[middle:]) if half in text]


async def run_to_its_end(app: App, task: Task[..., Any]) -> str:
    async with app.worker(concurrency=1):
        run = await task.trigger()
        await app.results.ended(run.id)
    return run.id


async def echo_badly(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Answer with what is no HTTP, and with everything that was asked."""
    writer.write(f"{asked.path} {json.dumps(asked.headers)}\r\n\r\n".encode())


# Targets


async def test_a_malformed_response_does_not_bring_a_secret_into_the_history(
    storage_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("API_TOKEN", CANARY)
    app = App(storage_url, defaults=LOOPBACK)
    async with Endpoint(echo_badly) as endpoint, app:
        task = app.http_task(
            "ask",
            url=endpoint.url,
            headers={"x-first": secret("API_TOKEN"), "x-team": "red"},
            retry=ONCE,
        )
        run = await app.runs.get(await run_to_its_end(app, task))

    assert endpoint.asked[0].headers["x-first"] == CANARY
    assert run.failure is not None
    assert run.failure.type == "BadResponse"
    assert "[redacted]" in run.failure.message
    assert "red" in run.failure.message
    assert halves_shown(database_text(storage_url) + caplog.text) == []


async def test_literal_secrets_of_a_target_are_known_too(storage_url: str) -> None:
    app = App(storage_url, defaults=LOOPBACK)
    planted = ("literal-0a1b2c3d", "query-9f8e7d6c")
    async with Endpoint(echo_badly) as endpoint, app:
        headers = {"x-api-key": planted[0]}
        url = f"{endpoint.url}?sig={planted[1]}"
        run = await app.runs.get(
            await run_to_its_end(app, app.http_task("ask", url=url, headers=headers, retry=ONCE))
        )

    assert run.failure is not None
    assert run.failure.message.count("[redacted]") >= 2
    assert [it for it in planted if it in run.failure.message] == []


CUTS = [0, 7, 13, 20, 26]


@pytest.mark.parametrize("share", CUTS)
async def test_half_a_secret_is_not_left_where_standard_error_is_cut(
    storage_url: str, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """Once where the captured output is cut, and once where a line becomes too long."""
    monkeypatch.setenv("BACKUP_KEY", CANARY)
    code = f"""if True:
        import os, sys
        key = os.environ["KEY"]
        sys.stderr.write("x" * ({LONGEST_MESSAGE} - {share}) + key + "y" * 70_000 + key + "z" * 9)
        sys.stderr.write("\\n" + "w" * (100 - {share}) + key + "v" * (100 - 26 + {share}))
    """
    app = App(storage_url, defaults=QUICK)
    argv, env = [sys.executable, "-c", code], {"KEY": secret("BACKUP_KEY")}
    task = app.shell_task("backup", argv=argv, env=env, output_limit=200, retry=ONCE)
    async with app:
        run_id = await run_to_its_end(app, task)
        lines = [line.message for line in await app.runs.logs(run_id)]
        [attempt] = await app.runs.attempts(run_id)

    assert len(lines) == 2
    assert attempt.output is not None
    assert "bytes left out" in attempt.output["stderr"]
    assert pieces_shown(database_text(storage_url)) == []


def pieces_shown(text: str) -> list[str]:
    pieces = [CANARY[start : start + 6] for start in range(len(CANARY) - 5)]
    return [piece for piece in pieces if piece in text]


async def test_a_private_key_that_a_command_prints_is_in_no_line_of_the_log(
    storage_url: str,
) -> None:
    key = (
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"
    )
    app = App(storage_url, defaults=QUICK)
    argv = [
        sys.executable,
        "-c",
        f"import sys; print('before', {key!r}, 'after', sep='\\n', file=sys.stderr)",
    ]
    async with app:
        run_id = await run_to_its_end(app, app.shell_task("print", argv=argv))
        lines = [line.message for line in await app.runs.logs(run_id)]
        [attempt] = await app.runs.attempts(run_id)

    assert lines == ["before", "[redacted]", "after"]
    assert attempt.output is not None
    assert attempt.output["stderr"] == "before\n[redacted]\nafter\n"


# Handlers


async def test_a_failure_is_stored_without_secrets(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)

    @app.task(retry=ONCE)
    async def fail() -> None:
        raise ValueError(f"refused: DB_PASSWORD_PROD={CANARY} by https://{CANARY}@host/")

    async with app:
        run = await app.runs.get(await run_to_its_end(app, fail))

    assert run.failure is not None
    assert run.failure.message == "refused: DB_PASSWORD_PROD=[redacted] by https://[redacted]@host/"
    assert run.failure.traceback is not None
    assert "ValueError: refused: DB_PASSWORD_PROD=[redacted]" in run.failure.traceback
    assert halves_shown(database_text(storage_url)) == []


@pytest.mark.parametrize("place", [-20, -13, -5])
async def test_a_failure_that_is_too_long_is_cut_without_half_a_secret(
    sqlite_storage_url: str, place: int
) -> None:
    app = App(sqlite_storage_url, defaults=QUICK)

    @app.task(retry=ONCE)
    async def fail() -> None:
        before = "long words " * 2000
        raise ValueError(f"{before[: MAX_MESSAGE + place - 8]} https://{CANARY}@host/ {before * 4}")

    async with app:
        run = await app.runs.get(await run_to_its_end(app, fail))

    assert run.failure is not None
    assert run.failure.message.endswith(" more characters)")
    assert len(run.failure.message) < MAX_MESSAGE + 40
    assert run.failure.traceback is not None
    assert len(run.failure.traceback) < MAX_MESSAGE + 40
    assert pieces_shown(database_text(sqlite_storage_url)) == []


async def test_failures_that_differ_in_a_secret_have_one_fingerprint(
    sqlite_storage_url: str,
) -> None:
    app = App(sqlite_storage_url, defaults=QUICK)

    @app.task(retry=ONCE)
    async def fail(ctx: Context) -> None:
        raise ValueError(f"token={ctx.run.id[::-1]} was refused")

    async with app:
        runs = [await app.runs.get(await run_to_its_end(app, fail)) for _ in range(2)]

    assert len({run.failure.fingerprint for run in runs if run.failure is not None}) == 1


async def test_a_log_line_that_is_too_long_is_cut_without_half_a_secret(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)

    @app.task
    async def speak(ctx: Context) -> None:
        for share in CUTS:
            before = "long words " * 2000
            head = before[: LONGEST_MESSAGE - 9 - share]
            ctx.log.info("%s https://%s@host/ %s", head, CANARY, before * 2)
        ctx.progress(0.5, f"curl -u ada:{CANARY} https://host")

    async with app:
        run_id = await run_to_its_end(app, speak)
        lines = await app.runs.logs(run_id)

    assert len(lines) == len(CUTS)
    assert all(line.message.endswith(" more characters)") for line in lines)
    assert pieces_shown(database_text(storage_url)) == []


# Webhooks, the audit log, answers and log records


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    async with telling(url) as app, Api(App(url), LOCAL) as api, client_of(api) as client:
        yield app, client


async def test_the_query_of_a_webhooks_url_is_not_in_the_audit_log(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)
    hook = {"name": "billing", "signing_secrets": ["WEBHOOK_TEST"]}
    async with served(storage_url) as (app, client):
        url = f"https://example.com/hook?k={CANARY}&page=2"
        made = await client.post("/v1/webhooks", json=hook | {"url": url})
        changed = await client.patch("/v1/webhooks/billing", json={"url": f"{url}&v=3"})
        refused = await client.patch("/v1/webhooks/billing", json={"url": f"ftp://x/?k={CANARY}"})
        entries = [it.entry for it in await AuditLog(app.runtime).read()]

    assert (made.status_code, changed.status_code, refused.status_code) == (201, 200, 422)
    assert [it.outcome for it in entries] == ["done", "done", "invalid-input"]
    hidden = "https://example.com/hook?[redacted]"
    assert [(it.details or {})["url"] for it in entries][:2] == [hidden, hidden]
    [rows] = execute(storage_url, "SELECT body FROM perdure_audit")
    assert halves_shown(json.dumps(rows)) == []


async def test_every_entry_of_the_audit_log_is_redacted_where_it_is_written(
    storage_url: str,
) -> None:
    async with telling(storage_url) as app:
        run = await app.tasks["double"].options(idempotency_key="one").trigger()
        await app.runs.reset_idempotency_key(run.id, f"PROD_TOKEN_OLD={CANARY} leaked")
        [entry] = [it.entry for it in await AuditLog(app.runtime).read()]

    assert entry.reason == "PROD_TOKEN_OLD=[redacted] leaked"
    [rows] = execute(storage_url, "SELECT body FROM perdure_audit")
    assert halves_shown(json.dumps(rows)) == []


async def test_a_webhooks_malformed_answer_brings_no_secret_into_its_deliveries(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)
    monkeypatch.setenv("WEBHOOK_HEADER", CANARY)
    async with Endpoint(echo_badly) as endpoint, telling(storage_url) as app:
        await app.webhooks.create(
            "billing",
            f"{endpoint.url}?sig=query-9f8e7d6c",
            signing_secret=secret("WEBHOOK_TEST"),
            headers={"x-first": secret("WEBHOOK_HEADER")},
        )
        delivery = await app.webhooks.test("billing")

    assert delivery.error is not None
    assert "does not speak HTTP/1.1" in delivery.error
    assert "[redacted]" in delivery.error
    assert halves_shown(delivery.error) == []
    assert "9f8e7d6c" not in delivery.error


async def test_a_problem_response_repeats_no_secret(storage_url: str) -> None:
    async with served(storage_url) as (_, client):
        address = f"ftp://ada:{CANARY}@host/"
        hook = {"name": "x", "url": address, "signing_secrets": ["WEBHOOK_TEST"]}
        refused = await client.post("/v1/webhooks", json=hook)
        unknown = await client.get(f"/v1/nothing/token={CANARY}")

    assert (refused.status_code, unknown.status_code) == (422, 404)
    assert "must begin with https://" in refused.json()["detail"]
    assert halves_shown(refused.text + unknown.text) == []


def test_a_log_record_repeats_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        table.QUARANTINED.say(kind="x", id="y", error=f"password => {CANARY}")
        try:
            raise ValueError(f"AWS_SECRET_ACCESS_KEY={CANARY}")
        except ValueError:
            table.SERVICE_FAILED.say_with_error(service="x")
        try:
            raise ValueError("harmless")
        except ValueError:
            table.SERVICE_FAILED.say_with_error(service="x")

    assert halves_shown(caplog.text + "".join(str(vars(it)) for it in caplog.records)) == []
    kinds = [it.exc_info[0] for it in caplog.records if it.exc_info]
    assert kinds == [RedactedException, ValueError]


async def test_an_apps_own_redaction_passes_the_same_seam(sqlite_storage_url: str) -> None:
    app = App(sqlite_storage_url, defaults=QUICK, redact=Redaction(patterns=[r"DE\d{8,}"]))

    @app.task(retry=ONCE)
    async def fail() -> None:
        raise ValueError("account DE0012345678 is closed")

    async with app:
        run = await app.runs.get(await run_to_its_end(app, fail))

    assert run.failure is not None
    assert run.failure.message == "account [redacted] is closed"
    assert "DE0012345678" not in database_text(sqlite_storage_url)


def test_the_overlap_is_longer_than_any_secret_of_the_tests() -> None:
    assert 100 * len(CANARY) < OVERLAP_CHARS


def test_only_an_app_its_logs_and_the_defaults_make_redactors() -> None:
    """The others receive the one of their app, so that no text passes a different one."""
    source = Path(perdure.__file__).parent
    makers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"\bRedactor\(", path.read_text())
    }

    assert makers == {
        "app/app.py",
        "cli/output/answer.py",
        "cli/services/logs.py",
        "engine/targets/dependencies.py",
        "telemetry/redactor.py",
    }


async def test_a_large_webhook_is_redacted_off_the_event_loop(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)
    loop_thread, on_loop = threading.get_ident(), []

    def redact(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if "data" in fields or "webhook" in fields:
            on_loop.append((threading.get_ident() == loop_thread, len(repr(fields)) > 500_000))
        return Redaction()(message, fields)

    async with Receiver() as receiver, telling(storage_url, redact=redact) as app:
        await app.webhooks.create(
            "all", receiver.url, signing_secret=SIGNED, events=["run.created"], with_payload=True
        )
        for text in ("little", "x" * 1_000_000):
            await app.tasks["fragile"].trigger(text)
        await app.webhook_sender().run_once()
        assert len(receiver.taken) == 2

    assert sorted(on_loop) == [(False, True), (True, False)]


# The command line


@pytest.mark.parametrize(
    "words",
    [
        ("worker", "sick:app"),
        ("runs", "list", "--url", f"oracle://ann:{CANARY}@db/runs"),
        ("runs", "list", "--url", f"https://ann:{CANARY}@127.0.0.1:9/"),
    ],
)
def test_a_command_that_fails_repeats_no_secret(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "sick.py").write_text(
        f"raise RuntimeError('cannot reach postgres://ann:{CANARY}@db')"
    )

    failed = Shell(tmp_path).perdure(*words)

    assert failed.code != 0
    assert failed.err
    assert halves_shown(failed.out + failed.err) == []


def test_the_traceback_of_a_command_repeats_no_secret() -> None:
    @explained
    def command() -> None:
        raise ValueError(f"DB_PASSWORD={CANARY}")

    with pytest.raises(RedactedException) as raised:
        command()

    assert "ValueError: DB_PASSWORD=[redacted]" in str(raised.value)
    assert raised.value.__suppress_context__
