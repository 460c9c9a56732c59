"""The roles that the documentation gives: a server and a worker live with them, and no role can do
more than it needs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from fix_app import QUICK
from hook_kit import SECRET, Receiver
from perdure import App, Context, Retry
from perdure.cli.main import main
from perdure.core.decide import decide_release
from perdure.core.run.lifecycle import Status
from perdure.engine.operators.keys import Keys
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import RunFailed, StorageRefused
from perdure.storage import open_storage
from perdure.testing.postgres import PostgresServer
from raw import execute
from storage_kit import claim_one, new_run, now, step, stored, token_of
from waiting import MAX_WAIT_S
from web_kit import ADA, serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "postgres-roles.md"
ROLES = ("server", "worker", "reader")
ALL, NO_TRUNCATE = "SELECT INSERT UPDATE DELETE TRUNCATE", "SELECT INSERT UPDATE DELETE"

RIGHTS = {
    "audit": ("SELECT INSERT", "", ""),
    "batches": ("SELECT INSERT DELETE", "SELECT INSERT", "SELECT"),
    "buckets": (NO_TRUNCATE, NO_TRUNCATE, "SELECT"),
    "dead_letters": (NO_TRUNCATE, "SELECT INSERT", "SELECT"),
    "feed_pruned": ("SELECT INSERT UPDATE", "SELECT", "SELECT"),
    "history": ("SELECT INSERT DELETE", "SELECT INSERT", "SELECT"),
    "keys": (NO_TRUNCATE, NO_TRUNCATE, "SELECT"),
    "limits": ("SELECT INSERT UPDATE", "SELECT INSERT UPDATE", "SELECT"),
    "outbox": ("SELECT INSERT DELETE", "SELECT INSERT", "SELECT"),
    "records": (NO_TRUNCATE, NO_TRUNCATE, "SELECT"),
    "run_logs": ("SELECT INSERT DELETE", "SELECT INSERT DELETE", "SELECT"),
    "run_progress": (NO_TRUNCATE, "SELECT INSERT UPDATE", "SELECT"),
    "run_tags": ("SELECT INSERT DELETE", "SELECT INSERT", "SELECT"),
    "runs": (NO_TRUNCATE, "SELECT INSERT UPDATE", "SELECT"),
    "schedules": ("SELECT INSERT UPDATE", "SELECT INSERT UPDATE", "SELECT"),
    "schema": ("SELECT", "SELECT", "SELECT"),
    "skipped_spans": ("SELECT INSERT DELETE", "SELECT INSERT", "SELECT"),
    "turns": ("SELECT INSERT UPDATE", "SELECT INSERT UPDATE", "SELECT"),
    "webhook_deliveries": ("SELECT INSERT DELETE", "", ""),
    "webhooks": (NO_TRUNCATE, "", ""),
}
"""Of each table: what server, worker and reader may do."""


class Logins(NamedTuple):
    """The URLs of one database, by who connects."""

    owner: str
    server: str
    worker: str
    reader: str


@pytest.fixture
def logins(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Logins]:
    """A migrated database of an owner without other rights, and a login for each role."""
    suffix = secrets.token_hex(4)
    names = {role: f"test_{role}_{suffix}" for role in ("owner", *ROLES)}
    urls = {role: _login(postgres_url, name) for role, name in names.items()}
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        _create(connection, names["owner"], "CREATEROLE")
        owner = sql.Identifier(names["owner"])
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, owner))
        connection.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(owner))
        asyncio.run(_migrate(urls["owner"]))
        execute(urls["owner"], documented_sql())
        for role in ROLES:
            _create(connection, names[role], f"IN ROLE perdure_{role}")
    yield Logins(**urls)
    postgres_server.drop_database(urlsplit(postgres_url).path[1:])
    for name in reversed(names.values()):
        execute(postgres_server.url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def documented_sql() -> str:
    [block] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def _login(url: str, name: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}:pw@{parts.hostname}:{parts.port}").geturl()


def _create(connection: psycopg.Connection[Any], name: str, more: str) -> None:
    connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' {more}".encode())


async def _migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    try:
        await storage.migrate()
    finally:
        await storage.close()


def make_app(url: str) -> App:
    app = App(url, defaults=QUICK)

    @app.task(
        queue="numbers",
        concurrency_key="number",
        concurrency_per_key=5,
        rate_per_key="1000/1s",
        concurrency=50,
    )
    async def double(ctx: Context, number: int) -> int:
        ctx.log.info("doubling", number=number)
        ctx.progress(0.5, "half")
        return 2 * number

    @app.task(retry=Retry(max_attempts=2, initial=0, on_exhausted="dead_letter"))
    async def fragile() -> None:
        raise ValueError("broken")

    return app


# What they can do


@pytest.mark.system
async def test_a_server_and_a_worker_live_with_their_roles(logins: Logins, tmp_path: Path) -> None:
    async with App(logins.server, defaults=QUICK) as app:
        key = await Keys(app.runtime).create(
            "all", ["read", "trigger", "operate", "admin"], environment="default", by=ADA
        )
    headers = {"authorization": f"Bearer {key.text}"}
    variables = {"WEBHOOK_TEST": SECRET, "PERDURE_HTTP_ALLOW": "loopback"}
    async with Receiver() as receiver, make_app(logins.worker) as worker:
        with serving(logins.server, tmp_path, files=None, **variables) as server:
            async with httpx.AsyncClient(base_url=server.address, headers=headers) as client:
                async with worker.worker(concurrency=2), worker.scheduler():
                    await _live(client, receiver, worker)
                await _operate(client)
    log = (tmp_path / "server.log").read_text()
    assert "permission denied" not in log
    await _prune_as_the_server(logins)


async def _live(client: httpx.AsyncClient, receiver: Receiver, worker: App) -> None:
    """A run from its trigger to its end, a dead letter, a schedule and a webhook."""
    hook = {"name": "told", "url": receiver.url, "signing_secrets": ["WEBHOOK_TEST"]}
    await _ask(client, "POST", "/v1/webhooks", hook)
    schedule = {"task": "double", "payload": {"number": 4}, "cadence": {"every": 1}}
    await _ask(client, "PUT", "/v1/schedules/often", schedule)
    body = {
        "task": "double",
        "payload": {"number": 21},
        "idempotency_key": "one",
        "tags": {"a": "b"},
    }
    run_id = (await _ask(client, "POST", "/v1/runs", body))["id"]
    await worker.results.ended(run_id)
    run = await _ask(client, "GET", f"/v1/runs/{run_id}")
    assert (run["status"], run["result"]) == ("succeeded", 42)
    [line] = (await _ask(client, "GET", f"/v1/runs/{run_id}/logs"))["items"]
    assert line["message"] == "doubling"
    broken = await worker.tasks["fragile"].trigger()
    with pytest.raises(RunFailed):
        await broken.result(MAX_WAIT_S)
    async with asyncio.timeout(MAX_WAIT_S):
        while not await _has_scheduled_run(client):  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.05)
        while not receiver.taken:
            receiver.news.clear()
            await receiver.news.wait()


async def _has_scheduled_run(client: httpx.AsyncClient) -> bool:
    query = "/v1/runs?schedule_id=often&status=succeeded"
    return bool((await _ask(client, "GET", query))["items"])


async def _operate(client: httpx.AsyncClient) -> None:
    """What operators do through the server."""
    await _ask(client, "POST", "/v1/schedules/often/pause", {"reason": "test"})
    await _ask(client, "POST", "/v1/queues/numbers/pause", {"reason": "test"})
    [letter] = (await _ask(client, "GET", "/v1/dead-letters"))["items"]
    await _ask(client, "POST", f"/v1/dead-letters/{letter['run_id']}/discard", {"reason": "test"})
    made = await _ask(client, "POST", "/v1/runs", {"task": "double", "payload": {"number": 1}})
    await _ask(client, "POST", f"/v1/runs/{made['id']}/cancel", {"reason": "test"})
    await _ask(client, "DELETE", "/v1/webhooks/told")
    actions = [it["action"] for it in (await _ask(client, "GET", "/v1/audit"))["items"]]
    assert {"create_webhook", "pause_queue", "cancel_run"} <= set(actions)


async def _ask(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await client.request(method, path, json=body, timeout=MAX_WAIT_S)
    assert answer.status_code < 300, f"{method} {path}: {answer.text}"
    return answer.json()


async def _prune_as_the_server(logins: Logins) -> None:
    later = timedelta(hours=1)
    async with App(logins.worker, defaults=QUICK) as worker:
        with pytest.raises(StorageRefused, match="permission denied"):
            await worker.storage.prune(Status.SUCCEEDED, worker.time() + later, 100)
    async with App(logins.server, defaults=QUICK) as server:
        assert await server.storage.prune(Status.SUCCEEDED, server.time() + later, 100) >= 2


async def test_only_the_server_folds_histories(logins: Logins) -> None:
    async with App(logins.worker, defaults=QUICK) as worker:
        [run] = await stored(worker.storage, new_run())
        for _ in range(50):
            run = await claim_one(worker.storage)
            given_back = decide_release(run, token_of(run), now(), resume_at=run.updated_at)
            [run] = await stored(worker.storage, step(run, given_back))
        with pytest.raises(StorageRefused, match="permission denied"):
            await worker.storage.fold_histories(10)
    async with App(logins.server, defaults=QUICK) as server:
        assert await server.storage.fold_histories(10) == 1
        assert len(await server.storage.events(run.id)) == run.sequence


async def test_a_reader_reads_runs_and_writes_nothing(logins: Logins) -> None:
    async with make_app(logins.worker) as app, app.worker(concurrency=1):
        run = await app.tasks["double"].trigger(3)
        assert await run.result(MAX_WAIT_S) == 6
        waiting = await app.tasks["double"].options(delay=3600).trigger(4)

    async with App(logins.reader, defaults=QUICK) as reader:
        assert (await reader.runs.get(run.id)).result == 6
        assert [line.message for line in await reader.runs.logs(run.id)] == ["doubling"]
        assert [it.concurrency for it in await reader.workers.list()] == [1]
        with pytest.raises(StorageRefused, match="permission denied"):
            await reader.runs.cancel(waiting.id)
        with pytest.raises(StorageRefused, match="permission denied"):
            await reader.queues.pause("numbers", "no")


# What they cannot do


def test_every_table_has_the_documented_rights_and_no_others(logins: Logins) -> None:
    [tables] = execute(
        logins.owner, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'perdure\\_%'"
    )
    assert {name.removeprefix("perdure_") for (name,) in tables} == set(RIGHTS)

    for position, role in enumerate(ROLES):
        for table, rights in RIGHTS.items():
            [[row]] = execute(
                logins.owner,
                "SELECT " + ", ".join(_has_right(role, table, it) for it in ALL.split()),
            )
            held = [right for right, holds in zip(ALL.split(), row, strict=True) if holds]
            assert held == rights[position].split(), (role, table)


def _has_right(role: str, table: str, right: str) -> str:
    return f"has_table_privilege('perdure_{role}', 'perdure_{table}', '{right}')"


FORBIDDEN = (
    "DROP TABLE perdure_runs",
    "ALTER TABLE perdure_runs ADD COLUMN extra text",
    "ALTER TABLE perdure_records DISABLE ROW LEVEL SECURITY",
    "DROP POLICY perdure_worker_records ON perdure_records",
    "TRUNCATE perdure_history",
    "CREATE INDEX extra ON perdure_runs (id)",
    "CREATE TABLE extra (id int)",
    "DELETE FROM perdure_audit",
    "UPDATE perdure_audit SET body = ''",
    "UPDATE perdure_schema SET version = 1",
    "UPDATE perdure_history SET events = ''",
    "CREATE ROLE extra",
    "ALTER ROLE perdure_reader SUPERUSER",
)
OF_WORKERS = (
    "SELECT * FROM perdure_audit",
    "INSERT INTO perdure_audit VALUES ('default', 1, '', '')",
    "SELECT * FROM perdure_webhooks",
    "SELECT * FROM perdure_webhook_deliveries",
    "DELETE FROM perdure_runs",
    "DELETE FROM perdure_history",
    "UPDATE perdure_dead_letters SET status = 'discarded'",
    "INSERT INTO perdure_records VALUES ('', 'key', 'forged', 1, now(), '{}')",
    "SET ROLE perdure_server",
    "SET row_security = off; SELECT * FROM perdure_records",
)
OF_READERS = (
    "INSERT INTO perdure_records VALUES ('', 'task', 'forged', 1, now(), '{}')",
    "UPDATE perdure_runs SET priority = 1",
    "DELETE FROM perdure_run_logs",
    "SELECT 1 FROM perdure_runs FOR UPDATE",
    "SET ROLE perdure_worker",
)


@pytest.mark.parametrize(
    ("role", "statements"),
    [
        ("server", FORBIDDEN),
        ("worker", (*FORBIDDEN, *OF_WORKERS)),
        ("reader", (*FORBIDDEN, *OF_WORKERS, *OF_READERS)),
    ],
)
def test_what_a_role_must_not_do_is_refused(
    logins: Logins, role: str, statements: tuple[str, ...]
) -> None:
    url: str = getattr(logins, role)

    for statement in statements:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(url, statement)


async def test_only_a_server_sees_and_changes_api_keys(logins: Logins) -> None:
    async with App(logins.server, defaults=QUICK) as app:
        await Keys(app.runtime).create("all", ["read"], environment="default", by=ADA)
    keys = "SELECT count(*) FROM perdure_records WHERE kind = 'key'"
    spoil = "UPDATE perdure_records SET body = '{}' WHERE kind = 'key' RETURNING name"
    remove = "DELETE FROM perdure_records WHERE kind = 'key' RETURNING name"

    assert execute(logins.server, keys) == [[(1,)]]
    assert execute(logins.worker, keys, spoil, remove) == [[(0,)], [], []]
    assert execute(logins.reader, keys) == [[(0,)]]
    assert execute(logins.server, keys) == [[(1,)]]


def test_the_sql_may_be_run_again_and_is_what_the_command_prints(logins: Logins) -> None:
    printed = CliRunner().invoke(main, ["migrate", "--roles"])

    assert printed.output == documented_sql()
    execute(logins.owner, printed.output)
    test_every_table_has_the_documented_rights_and_no_others(logins)
