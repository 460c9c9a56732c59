"""Operators give the same records and errors at a server as beside its database, and never use the
storage contract there."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
import pytest_asyncio

from perdure import App, Context, Manifest, Rate, Retry, at, cron, every, secret
from perdure.app.session import session_of
from perdure.core.schedule import Definition
from perdure.engine.inspection.verify import Audit, StoredRuns
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.operators.audit_log import Verification
from perdure.engine.operators.bulk_order import Action
from perdure.engine.operators.keys import Keys
from perdure.engine.rest.health import RemoteIntegrity
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import PerdureError
from remote_kit import Hall, world_at
from situations import a_worker
from waiting import MAX_WAIT_S
from web_kit import ADA, dead_letter, shop

MORNING = datetime(2024, 1, 1, 9, tzinfo=UTC)
CENTURY = at(datetime(2100, 1, 1, tzinfo=UTC))
JUMPED_OVER = datetime(2024, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
MISSING = f"run_{0:032x}"
SECRET = "hunter2"

Ids = dict[str, str]
Operation = Callable[[App, Ids], Awaitable[object]]


class Pair:
    """One database: an app beside it, an app at its server, and what the tests ask about."""

    def __init__(self, direct: App, remote: App, ids: Ids, requests: list[str]) -> None:
        self.direct = direct
        self.remote = remote
        self.ids = ids
        self.requests = requests

    def show(self, value: object) -> object:
        """As a server would show it."""
        return Showing(self.direct.redactor).shown(value)


@pytest_asyncio.fixture
async def pair(hall: Hall, storage_url: str) -> AsyncIterator[Pair]:
    async with world_at(hall, storage_url, furnished(storage_url)) as world:
        ids = await furnish(world.app)
        key = await Keys(world.app.runtime).create(
            "all", ["read", "trigger", "operate", "admin"], by=ADA
        )
        async with App(world.address, api_key=key.text) as remote:
            yield Pair(world.app, remote, ids, hall.requests[world.address])


def furnished(url: str) -> App:
    app = shop(url)

    @app.task(queue="talking")
    async def talk(ctx: Context) -> dict[str, float]:
        ctx.log.info("hello", password=SECRET, number=1)
        ctx.log.warning("a line")
        ctx.progress(0.5, "half")
        return {"huge": 2**60, "tiny": 1e-300}

    @app.task(priority=5)
    async def urgent() -> None: ...

    @app.task(queue="waiting")
    async def patient(ctx: Context) -> None:
        ctx.wait_for("approval")

    return app


async def furnish(app: App) -> Ids:
    """Something of everything that operators read."""
    async with app.worker(concurrency=2):
        talked = await app.tasks["talk"].trigger()
        await talked.result(MAX_WAIT_S)
        waiting = await app.tasks["patient"].trigger()
        async with asyncio.timeout(MAX_WAIT_S):
            while (await waiting.get()).status != "waiting":
                await app.clock.sleep(timedelta(milliseconds=5))
    dead = await dead_letter(app, message=f"password={SECRET}")
    tagged = app.tasks["double"].options(delay=3600, tags={"a": "b=c"}, idempotency_key="once")
    later = await tagged.trigger(2, password=SECRET)
    await app.schedules.create("daily", every(86400), "double", payload={"number": 1})
    await app.schedules.create(
        "berlin", cron("30 2 * * *", tz="Europe/Berlin", gap="skip"), "double",
        payload={"number": 2, "password": SECRET}, retry=Retry(max_attempts=7), timeout=9,
        tags={"x": "y"}, overlap="allow", max_concurrency=3, catch_up_age=3600,
    )  # fmt: skip
    await app.schedules.pause("berlin", "for now", by=ADA)
    await app.schedules.create("gone", CENTURY, "fragile")
    await app.schedules.delete("gone", "not needed", by=ADA)
    await app.schedules.trigger("daily", "by hand", by=ADA)
    await app.schedules.backfill("daily", MORNING, MORNING + timedelta(days=2), "missed", by=ADA)
    await app.queues.pause("numbers", "flooded", by=ADA)
    await app.limits.set("double", concurrency=3, rate=Rate(10, 60, burst=2), by=ADA)
    url = f"http://192.0.2.1/?k={SECRET}"
    await app.webhooks.create("told", url, signing_secret=secret("WEBHOOK_X"))
    await app.webhooks.pause("told")
    await a_worker(app, "worker_1")
    await app.runs.reset_idempotency_key(later, "again", by=ADA)
    return {"talked": talked.id, "waiting": waiting.id, "dead": dead, "later": later.id}


async def _followed(app: App, run_id: str) -> list[Any]:
    return [line async for line in app.runs.follow(run_id)]


async def _audited(app: App) -> object:
    runs = StoredRuns(app.storage, "default") if app.rest is None else RemoteIntegrity(app.rest)
    audit = Audit(runs, page=3)
    return [finding async for finding in audit.findings()], msgspec.to_builtins(audit.totals)


async def _verified(app: App) -> object:
    verification = Verification(session_of(app).audit_entries, "default")
    flaws = [flaw async for flaw in verification.flaws()]
    return flaws, msgspec.to_builtins(verification.totals)


async def _doctor(app: App) -> object:
    """Without what changes from one moment to the next."""
    found = await app.doctor()
    return [finding.code for finding in found.findings], found.vitals and found.vitals.database


async def _overview(app: App) -> object:
    found = await app.overview()
    queues = [msgspec.structs.replace(it, oldest_due_seconds=0.0) for it in found.queues]
    return found.environment, queues, found.workers, found.failures, found.ended


async def _why(app: App, run_id: str) -> object:
    return msgspec.structs.replace(await app.runs.why(run_id), at=MORNING)


async def _keys(app: App) -> object:
    hidden = {"secrets": (), "version": 0, "last_used_at": None}
    return [msgspec.structs.replace(key, **hidden) for key in await session_of(app).keys.list()]


READS: dict[str, Operation] = {
    "runs.get": lambda app, ids: app.runs.get(ids["talked"]),
    "runs.get, dead": lambda app, ids: app.runs.get(ids["dead"]),
    "runs.get, later": lambda app, ids: app.runs.get(ids["later"]),
    "runs.list": lambda app, ids: app.runs.list(),
    "runs.list, a page": lambda app, ids: app.runs.list(limit=2),
    "runs.list, filters": lambda app, ids: app.runs.list(
        status="scheduled", task="double", tag=("a", "b=c"), queue="numbers"
    ),
    "runs.list, times": lambda app, ids: app.runs.list(
        created_after=MORNING, schedule_id="daily", tags={}
    ),
    "runs.list, statuses": lambda app, ids: app.runs.list(status=["dead_lettered", "waiting"]),
    "runs.list, statuses as text": lambda app, ids: app.runs.list(status="succeeded,waiting"),
    "runs.list, since": lambda app, ids: app.runs.list(since="1h", finished_after="30m"),
    "runs.list, ended": lambda app, ids: app.runs.list(
        since=timedelta(hours=1), finished_before="0s", tag="a=b=c"
    ),
    "runs.list, failures": lambda app, ids: app.runs.list(failure_kind="error", text="fragile"),
    "runs.why, dead": lambda app, ids: _why(app, ids["dead"]),
    "runs.why, later": lambda app, ids: _why(app, ids["later"]),
    "runs.events": lambda app, ids: app.runs.events(ids["talked"]),
    "runs.events, dead": lambda app, ids: app.runs.events(ids["dead"], after=2),
    "runs.events, waiting": lambda app, ids: app.runs.events(ids["waiting"]),
    "runs.attempts": lambda app, ids: app.runs.attempts(ids["dead"]),
    "runs.successors": lambda app, ids: app.runs.successors([ids["dead"], ids["talked"]]),
    "runs.logs": lambda app, ids: app.runs.logs(ids["talked"]),
    "runs.logs, one": lambda app, ids: app.runs.logs(ids["talked"], limit=1),
    "runs.logs, after": lambda app, ids: app.runs.logs(ids["talked"], after="1.1"),
    "runs.follow": lambda app, ids: _followed(app, ids["talked"]),
    "runs.progress": lambda app, ids: app.runs.progress(ids["talked"]),
    "runs.progress, none": lambda app, ids: app.runs.progress(ids["later"]),
    "runs.bundle": lambda app, ids: app.runs.bundle(ids["dead"]),
    "dead_letters.list": lambda app, ids: app.dead_letters.list(),
    "dead_letters.page": lambda app, ids: app.dead_letters.page(status=None, task="fragile"),
    "dead_letters.get": lambda app, ids: app.dead_letters.get(ids["dead"]),
    "workers.list": lambda app, ids: app.workers.list(),
    "workers.leases": lambda app, ids: app.workers.leases("worker_1"),
    "queues.list": lambda app, ids: app.queues.list(),
    "queues.get": lambda app, ids: app.queues.get("numbers"),
    "limits.list": lambda app, ids: app.limits.list(),
    "limits.get": lambda app, ids: app.limits.get("double"),
    "schedules.list": lambda app, ids: app.schedules.list(),
    "schedules.list, deleted": lambda app, ids: app.schedules.list(
        deleted=True, limit=1, after="daily"
    ),
    "schedules.get": lambda app, ids: app.schedules.get("berlin"),
    "schedules.get, deleted": lambda app, ids: app.schedules.get("gone", deleted=True),
    "schedules.preview": lambda app, ids: app.schedules.preview("daily", 3, after=MORNING),
    "schedules.preview, cadence": lambda app, ids: app.schedules.preview(
        every(5), 3, after=MORNING
    ),
    "schedules.occurrences": lambda app, ids: app.schedules.occurrences(
        "daily", MORNING, MORNING + timedelta(days=9)
    ),
    "schedules.last": lambda app, ids: app.schedules.last("daily"),
    "schedules.why": lambda app, ids: app.schedules.why("daily", MORNING),
    "schedules.why, jumped over": lambda app, ids: app.schedules.why("berlin", JUMPED_OVER),
    "schedules.define": lambda app, ids: app.schedules.define(
        "new", every(5), "double", payload={"number": 3}
    ),
    "schedules.count_backfill": lambda app, ids: app.schedules.count_backfill(
        "daily", MORNING, MORNING + timedelta(days=9)
    ),
    "webhooks.list": lambda app, ids: app.webhooks.list(),
    "webhooks.get": lambda app, ids: app.webhooks.get("told"),
    "webhooks.deliveries": lambda app, ids: app.webhooks.deliveries("told"),
    "manifests.export": lambda app, ids: app.manifests.export(["daily"]),
    "manifests.export, all": lambda app, ids: app.manifests.export(),
    "keys.list": lambda app, ids: _keys(app),
    "audit_log.page": lambda app, ids: app.audit_log.page(limit=3),
    "audit_log.page, filtered": lambda app, ids: app.audit_log.page(action="pause_webhook"),
    "audit_log.read": lambda app, ids: session_of(app).audit_entries.audit_entries("default"),
    "audit_log, verified": lambda app, ids: _verified(app),
    "integrity": lambda app, ids: _audited(app),
    "doctor": lambda app, ids: _doctor(app),
    "overview": lambda app, ids: _overview(app),
    "tasks": lambda app, ids: session_of(app).known_tasks(),
    "bulk count, runs": lambda app, ids: session_of(app).count_fitting(
        Action.CANCEL, {"task": "double"}
    ),
    "bulk count, letters": lambda app, ids: session_of(app).count_fitting(Action.DISCARD, {}),
}


def without_secrets(value: Any) -> Any:
    """A manifest is plain data, which `Showing` leaves as it is."""
    if isinstance(value, dict):
        return {name: without_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return "[redacted]" if value == SECRET else value


async def test_every_read_gives_the_same_record_at_the_server(pair: Pair) -> None:
    for name, read in READS.items():
        direct, remote = await read(pair.direct, pair.ids), await read(pair.remote, pair.ids)

        assert remote == without_secrets(pair.show(direct)), name
        assert SECRET not in repr(remote), name


async def test_operators_at_a_server_never_use_the_storage_contract(pair: Pair) -> None:
    pair.requests.clear()

    for read in READS.values():
        await read(pair.remote, pair.ids)
    for write in WRITES.values():
        await write(pair.remote, pair.ids)

    assert len(pair.requests) > len(READS)
    assert [path for path in pair.requests if "/v1/storage" in path] == []


# Writes: what they return is what is stored afterwards

PUT: dict[str, Any] = {
    "payload": {"number": 4}, "misfire": "skip", "misfire_grace": timedelta(minutes=5),
    "catch_up_limit": 5, "catch_up_age": None, "overlap": "skip", "max_concurrency": 2,
    "queue": "other", "priority": 3, "retry": Retry(max_attempts=5, delays=[1, 2]), "timeout": 30,
    "ttl": 60, "concurrency_key": "k", "tags": {"t": "u"}, "enabled": False,
}  # fmt: skip

WRITES: dict[str, Operation] = {
    "schedules.create": lambda app, ids: app.schedules.create("new", every(60), "double", **PUT),
    "schedules.replace": lambda app, ids: app.schedules.replace(
        "new", cron("0 9 * * *", tz="Europe/Berlin"), "double", payload={"number": 5}, reason="why"
    ),
    "schedules.update": lambda app, ids: app.schedules.update(
        "new", cadence=CENTURY, reason="once", timeout=None, queue=None, retry=None
    ),
    "schedules.pause": lambda app, ids: app.schedules.pause("new", "later"),
    "schedules.resume": lambda app, ids: app.schedules.resume("new"),
    "schedules.delete": lambda app, ids: app.schedules.delete("new", "enough"),
    "queues.set": lambda app, ids: app.queues.set(
        "mail", concurrency=2, rate=Rate(1, 3, burst=9), create=True
    ),
    "queues.pause": lambda app, ids: app.queues.pause("mail", "why", create=True),
    "queues.resume": lambda app, ids: app.queues.resume("mail"),
    "queues.reset": lambda app, ids: app.queues.reset("mail"),
    "limits.set": lambda app, ids: app.limits.set("fragile", rate_per_key="5/1m"),
    "limits.reset": lambda app, ids: app.limits.reset("fragile"),
    "webhooks.update": lambda app, ids: app.webhooks.update("told", task="double", tag=("a", "b")),
    "webhooks.resume": lambda app, ids: app.webhooks.resume("told"),
    "runs.pause": lambda app, ids: app.runs.pause(ids["later"], "look first"),
    "runs.resume": lambda app, ids: app.runs.resume(ids["later"]),
    "runs.reschedule": lambda app, ids: app.runs.reschedule(ids["later"], priority=4, queue="q"),
    "runs.reset_idempotency_key": lambda app, ids: app.runs.reset_idempotency_key(ids["later"]),
    "runs.cancel": lambda app, ids: app.runs.cancel(ids["later"], "enough"),
    "runs.wake": lambda app, ids: app.runs.wake(ids["waiting"]),
    "workers.drain": lambda app, ids: _drained(app),
}  # fmt: skip

STORED: dict[str, Operation] = {
    "schedules": lambda app, ids: app.schedules.get("new", deleted=True),
    "queues": lambda app, ids: app.queues.get("mail"),
    "limits": lambda app, ids: app.limits.get("fragile"),
    "webhooks": lambda app, ids: app.webhooks.get("told"),
    "runs": lambda app, ids: app.runs.get(ids["later"]),
    "runs.wake": lambda app, ids: app.runs.get(ids["waiting"]),
    "workers": lambda app, ids: _worker(app),
}


async def _worker(app: App) -> object:
    found = next(worker for worker in await app.workers.list() if worker.id == "worker_1")
    return msgspec.structs.replace(found, seen_at=None)


async def _drained(app: App) -> object:
    """Writing the wish down moves the instant at which the worker was seen."""
    return msgspec.structs.replace(await app.workers.drain("worker_1", "old"), seen_at=None)


async def test_every_write_returns_what_is_stored_afterwards(pair: Pair) -> None:
    for name, write in WRITES.items():
        returned = await write(pair.remote, pair.ids)

        read = STORED.get(name) or STORED[name.partition(".")[0]]
        stored = await read(pair.direct, pair.ids)
        assert returned == pair.show(stored), name


async def test_a_schedule_made_at_the_server_equals_one_made_beside_the_database(
    pair: Pair,
) -> None:
    direct = await pair.direct.schedules.create("one", every(60), "double", **PUT)
    remote = await pair.remote.schedules.create("two", every(60), "double", **PUT)

    assert msgspec.structs.replace(remote.definition, id="one") == direct.definition


async def test_a_trigger_at_the_server_may_lower_a_priority_to_zero(pair: Pair) -> None:
    run = await session_of(pair.remote).trigger_known("urgent", {}, TriggerOptions(priority=0))

    assert (await pair.direct.runs.get(run.id)).priority == 0


async def test_definitions_are_applied_at_the_server_as_beside_the_database(pair: Pair) -> None:
    async def define(app: App) -> list[Definition]:
        return [
            await app.schedules.define("daily", every(60), "double", payload={"number": 9}),
            await app.schedules.define("extra", every(30), "double", payload={"number": 1}),
        ]

    planned = [
        await app.schedules.apply(await define(app), dry_run=True)
        for app in (pair.direct, pair.remote)
    ]
    done = await pair.remote.schedules.apply(await define(pair.remote))
    again = await pair.remote.schedules.apply(await define(pair.remote))

    assert planned[1] == pair.show(planned[0])
    assert ([it.definition.id for it in done.added], len(done.changed)) == (["extra"], 1)
    assert [it.id for it in again.unchanged] == ["daily", "extra"]
    assert await pair.direct.schedules.get("extra") == again.unchanged[1]


# Errors

ERRORS: dict[str, Operation] = {
    "runs.get": lambda app, ids: app.runs.get(MISSING),
    "runs.get, no id": lambda app, ids: app.runs.get("../keys"),
    "runs.events": lambda app, ids: app.runs.events(MISSING),
    "runs.logs": lambda app, ids: app.runs.logs(MISSING),
    "runs.logs, cursor": lambda app, ids: app.runs.logs(ids["talked"], after="x"),
    "runs.progress": lambda app, ids: app.runs.progress(MISSING),
    "runs.bundle": lambda app, ids: app.runs.bundle(MISSING),
    "runs.why": lambda app, ids: app.runs.why(MISSING),
    "runs.list, limit": lambda app, ids: app.runs.list(limit=1001),
    "runs.list, status": lambda app, ids: app.runs.list(status="sleeping"),
    "runs.list, statuses": lambda app, ids: app.runs.list(status="queued,sleeping"),
    "runs.list, since": lambda app, ids: app.runs.list(since="yesterday"),
    "runs.list, since twice": lambda app, ids: app.runs.list(since="1h", created_after="2h"),
    "runs.list, finished_after": lambda app, ids: app.runs.list(finished_after="later"),
    "runs.list, filter": lambda app, ids: app.runs.list(failure_kind="bad luck"),
    "runs.list, cursor": lambda app, ids: app.runs.list(cursor="nonsense"),
    "runs.resume": lambda app, ids: app.runs.resume(ids["dead"]),
    "runs.wake": lambda app, ids: app.runs.wake(ids["dead"]),
    "runs.pause, stale": lambda app, ids: app.runs.pause(ids["later"], expected=1),
    "runs.rerun": lambda app, ids: app.runs.rerun(ids["later"]),
    "runs.reason": lambda app, ids: app.runs.cancel(ids["later"], "a\0b"),
    "dead_letters.get": lambda app, ids: app.dead_letters.get(ids["talked"]),
    "dead_letters.page": lambda app, ids: app.dead_letters.page(status="lost"),
    "dead_letters.discard": lambda app, ids: app.dead_letters.discard(ids["talked"]),
    "workers.leases": lambda app, ids: app.workers.leases("no worker"),
    "workers.drain": lambda app, ids: app.workers.drain("no worker"),
    "queues.set": lambda app, ids: app.queues.set("q", concurrency=-1),
    "queues.set, nothing": lambda app, ids: app.queues.set("q"),
    "queues.set, rate": lambda app, ids: app.queues.set("q", rate="often"),
    "queues.pause": lambda app, ids: app.queues.pause("x" * 300),
    "limits.get": lambda app, ids: app.limits.get("no task"),
    "limits.set": lambda app, ids: app.limits.set("no task", concurrency=1),
    "schedules.get": lambda app, ids: app.schedules.get("gone"),
    "schedules.create": lambda app, ids: app.schedules.create(
        "daily", every(60), "double", payload={"number": 1}
    ),
    "schedules.create, task": lambda app, ids: app.schedules.create("s", every(60), "no task"),
    "schedules.create, past": lambda app, ids: app.schedules.create("s", at(MORNING), "fragile"),
    "schedules.replace": lambda app, ids: app.schedules.replace("no", every(60), "fragile"),
    "schedules.update": lambda app, ids: app.schedules.update("no", enabled=False),
    "schedules.update, payload": lambda app, ids: app.schedules.update("daily", payload={"x": 1}),
    "schedules.preview": lambda app, ids: app.schedules.preview("daily", 1001),
    "schedules.why": lambda app, ids: app.schedules.why("no", MORNING),
    "schedules.last": lambda app, ids: app.schedules.last("no"),
    "schedules.backfill": lambda app, ids: app.schedules.backfill(
        "daily", MORNING, MORNING - timedelta(1), "r"
    ),
    "schedules.trigger": lambda app, ids: app.schedules.trigger("no", "now"),
    "audit_log.page": lambda app, ids: app.audit_log.page(cursor="x"),
    "webhooks.get": lambda app, ids: app.webhooks.get("no"),
    "webhooks.create": lambda app, ids: app.webhooks.create(
        "told", "http://192.0.2.1/", signing_secret=secret("WEBHOOK_X")
    ),
    "webhooks.replay": lambda app, ids: app.webhooks.replay("told"),
    "manifests.apply": lambda app, ids: app.manifests.apply(
        Manifest.parse("{name: a, every: 1h, task: double, payload: {nmber: 2}}", "a.yaml")
    ),
    "manifests.export": lambda app, ids: app.manifests.export(["no"]),
    "keys.revoke": lambda app, ids: session_of(app).keys.revoke("no key"),
}


async def error_of(operation: Operation, app: App, ids: Ids) -> PerdureError:
    with pytest.raises(PerdureError) as caught:
        await operation(app, ids)
    return caught.value


async def test_every_error_has_the_same_type_and_text_at_the_server(pair: Pair) -> None:
    for name, operation in ERRORS.items():
        direct = await error_of(operation, pair.direct, pair.ids)
        remote = await error_of(operation, pair.remote, pair.ids)

        assert (type(remote), str(remote)) == (type(direct), str(direct)), name


async def test_a_key_of_another_environment_is_refused_before_anything_is_asked(
    hall: Hall, sqlite_storage_url: str
) -> None:
    async with world_at(hall, sqlite_storage_url) as world:
        key = await Keys(world.app.runtime).create("k", ["read"], environment="elsewhere", by=ADA)
        async with App(world.address, api_key=key.text) as app:
            error = await error_of(lambda app, _: app.runs.list(), app, {})

    assert "this key is for 'elsewhere', not 'default'" in str(error)


def test_every_public_operation_of_an_operator_is_compared() -> None:
    from perdure.engine.rest import audit, limits, runs, schedules, webhooks

    compared = {name.partition(",")[0] for name in (*READS, *WRITES, *ERRORS)}
    parts = {
        "runs": runs.RemoteRuns,
        "dead_letters": runs.RemoteDeadLetters,
        "workers": runs.RemoteWorkers,
        "queues": limits.RemoteQueues,
        "limits": limits.RemoteLimits,
        "schedules": schedules.RemoteSchedules,
        "webhooks": webhooks.RemoteWebhooks,
        "audit_log": audit.RemoteAuditPages,
    }
    public = {
        f"{part}.{name}"
        for part, kind in parts.items()
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    elsewhere = {
        "runs.handle", "runs.retry", "dead_letters.replay", "schedules.apply",
        "webhooks.pause", "webhooks.delete", "webhooks.test",
    }  # fmt: skip
    assert public - compared - elsewhere == set()
