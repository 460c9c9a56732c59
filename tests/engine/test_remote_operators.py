"""Operators of an app at a server: the same records, errors and effects as beside the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from perdure import App, Manifest, Rate, every, secret
from perdure.app.session import session_of
from perdure.core.run.lifecycle import Status
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.operators.keys import Keys
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import (
    AccessRefused,
    InvalidInput,
    InvalidManifest,
    KeyNotFound,
    NotAllowed,
    QueueNotFound,
    RunNotFound,
    ScheduleNotFound,
    SequenceConflict,
    StorageUnavailable,
    TaskNotFound,
    WebhookNotFound,
    WorkerNotFound,
)
from remote_kit import Hall, World, world_at
from web_kit import ADA, dead_letter, shop

NOBODY = f"run_{0:032x}"


@pytest_asyncio.fixture
async def world(hall: Hall, sqlite_storage_url: str) -> AsyncIterator[World]:
    async with world_at(hall, sqlite_storage_url, shop(sqlite_storage_url)) as made:
        yield made


class Operator:
    """An app at a server, the key it has, and what the audit log says."""

    def __init__(self, app: App, beside: App, actor_id: str | None) -> None:
        self.app = app
        self.beside = beside
        self.actor_id = actor_id

    async def log(self) -> list[tuple[str, str | None, str | None]]:
        entries = [it.entry for it in await AuditLog(self.beside.runtime).read()]
        assert {it.actor.id for it in entries} <= {self.actor_id}
        return [(it.action, it.target, it.reason) for it in entries]


@pytest_asyncio.fixture
async def operator(world: World) -> AsyncIterator[Operator]:
    scopes = ["read", "trigger", "operate", "admin"]
    made = await Keys(world.app.runtime).create("ops", scopes, by=ADA)
    async with App(world.address, api_key=made.text, because="on call") as app:
        yield Operator(app, world.app, made.key.actor.id)


async def later(app: App) -> str:
    return (await app.tasks["double"].options(delay=3600).trigger(1, password="hunter2")).id


async def test_runs_are_steered_and_the_key_is_who_did_it(operator: Operator) -> None:
    app, run_id = operator.app, await later(operator.beside)

    paused = await app.runs.pause(run_id, "look first", by="somebody else")
    resumed = await app.runs.resume(run_id)
    moved = await app.runs.reschedule(run_id, priority=7, reason="soon")
    cancelled = await app.runs.cancel(run_id, "enough")

    statuses = [it.status for it in (paused, resumed, cancelled)]
    assert statuses == [Status.PAUSED, Status.SCHEDULED, Status.CANCELLED]
    assert moved.priority == 7
    stored = await operator.beside.runs.get(run_id)
    assert cancelled == Showing(app.redactor).shown(stored)
    actors = [it.actor.id for it in await operator.beside.runs.events(run_id, after=2)]
    assert set(actors) == {operator.actor_id}
    assert await operator.log() == [
        ("pause_run", run_id, "look first"),
        ("resume_run", run_id, "on call"),
        ("reschedule_run", run_id, "soon"),
        ("cancel_run", run_id, "enough"),
    ]


async def test_a_run_made_again_has_the_arguments_that_are_not_shown(operator: Operator) -> None:
    app, run_id = operator.app, await later(operator.beside)
    await app.runs.cancel(run_id)

    made = await app.runs.rerun(run_id, "again")
    other = await app.runs.rerun(run_id, payload={"number": 5})

    assert (await app.runs.get(made)).payload == {"number": 1, "password": "[redacted]"}
    hidden = {"number": 1, "password": "hunter2"}
    assert (await operator.beside.runs.get(made.id)).payload == hidden
    assert (await operator.beside.runs.get(other.id)).payload == {"number": 5}
    assert made.created


async def test_dead_letters_are_replayed_once_and_discarded(operator: Operator) -> None:
    app, beside = operator.app, operator.beside
    first, second = await dead_letter(beside), await dead_letter(beside)

    made = await app.dead_letters.replay(first)
    await app.dead_letters.discard(second)

    assert [it.status for it in await app.dead_letters.list(status=None)] == [
        "discarded",
        "replayed",
    ]
    with pytest.raises(NotAllowed, match=made.id):
        await app.dead_letters.replay(first)
    with pytest.raises(NotAllowed, match="no open dead letter"):
        await app.dead_letters.discard(second)


async def test_a_replay_at_a_server_is_a_replay_in_the_audit_log(operator: Operator) -> None:
    letter = await dead_letter(operator.beside)

    await operator.app.dead_letters.replay(letter)

    [entry] = (await operator.beside.audit_log.page()).entries
    assert (entry.action, entry.target) == ("replay_dead_letter", letter)


async def test_queues_and_limits_are_set_and_given_back(operator: Operator) -> None:
    app, beside = operator.app, operator.beside

    paused = await app.queues.pause("numbers", "flooded")
    assert paused == await beside.queues.get("numbers")
    assert paused.paused is not None
    assert (paused.paused.by.id, paused.paused.reason) == (operator.actor_id, "flooded")
    assert (await app.queues.resume("numbers")).paused is None
    said = await app.queues.set("numbers", concurrency=3, rate="10/1m", fair=True)
    assert (said.concurrency.value, said.rate.value, said.fair.value) == (3, Rate(10, 60), True)
    assert (await app.queues.set("numbers", concurrency=None)).concurrency.value is None
    assert (await app.queues.reset("numbers")).rate.value is None
    limits = await app.limits.set("double", concurrency_per_key=1, rate=Rate(5, 1))
    assert limits == await beside.limits.get("double")
    assert (await app.limits.reset("double")).rate.value is None
    burst = await app.limits.set("double", rate=Rate(5, 1, burst=50))
    assert burst.rate.value == Rate(5, 1, burst=50)


async def test_a_worker_is_asked_to_end(operator: Operator) -> None:
    beside = operator.beside
    async with beside.worker(concurrency=1) as worker:
        while worker.id not in {it.id for it in await beside.workers.list()}:
            await beside.clock.sleep(timedelta(milliseconds=5))
        asked = await operator.app.workers.drain(worker.id, "token=hunter2")
        [entry] = [it for it in await beside.workers.list() if it.id == worker.id]

    assert asked.drain is not None
    assert (asked.drain.by.id, asked.drain.reason) == (operator.actor_id, "token=[redacted]")
    assert entry.drain is not None
    assert entry.drain.reason == "token=hunter2"
    with pytest.raises(WorkerNotFound):
        await operator.app.workers.drain("nobody")


async def test_schedules_are_held_run_and_backfilled(operator: Operator) -> None:
    app, beside = operator.app, operator.beside
    await beside.schedules.create("daily", every(86400), "double", payload={"number": 1})

    paused = await app.schedules.pause("daily", "holidays")
    assert paused == await beside.schedules.get("daily")
    assert (await app.schedules.resume("daily")).paused is None
    run = await app.schedules.trigger("daily", "now")
    assert (await beside.runs.get(run.id)).source.schedule_id == "daily"
    end = beside.time()
    done = await app.schedules.backfill("daily", end - timedelta(days=3), end, "missed")
    again = await app.schedules.backfill("daily", end - timedelta(days=3), end, "missed")
    assert ([it.created for it in done.runs], again.runs) == ([True] * 3, ())
    gone = await app.schedules.delete("daily", "not needed")
    assert gone.deleted is not None
    assert (gone.deleted.by.id, gone.deleted.reason) == (operator.actor_id, "not needed")


MANIFEST = """
schedules:
  - {name: hourly, every: 1h, task: double, payload: {number: 2, password: hunter2}}
"""


async def test_manifests_are_applied_where_the_schedules_are(operator: Operator) -> None:
    app, beside = operator.app, operator.beside

    dry = await app.manifests.apply(Manifest.parse(MANIFEST), dry_run=True)
    assert await beside.schedules.list() == []
    done = await app.manifests.apply(Manifest.parse(MANIFEST))

    [schedule] = await beside.schedules.list()
    assert (dry.differs, done.differs) == (True, True)
    fields = {it.field: it.new for item in done.items for it in item.fields}
    assert fields["payload.password"] == "[redacted]"
    assert b"hunter2" in bytes(schedule.definition.payload_json)
    assert schedule.defined is not None
    assert schedule.defined.by.id == operator.actor_id
    assert not (await app.manifests.apply(Manifest.parse(MANIFEST), dry_run=True)).differs
    wrong = Manifest.parse("{name: a, every: 1h, task: double, payload: {nmber: 2}}", "a.yaml")
    with pytest.raises(InvalidManifest, match=r"a\.yaml, line 1, .*no such argument"):
        await app.manifests.apply(wrong)


async def test_commands_in_a_manifest_need_more_than_to_operate(world: World) -> None:
    made = await Keys(world.app.runtime).create("ops", ["read", "operate"], by=ADA)
    text = "{name: a, every: 1h, target: {kind: shell, argv: [rm, -rf, /]}}"
    async with App(world.address, api_key=made.text) as app:
        with pytest.raises(AccessRefused, match="has a target that others would execute"):
            await app.manifests.apply(Manifest.parse(text))

    assert "a" not in {it.name for it in await world.beside.records("default", "task")}


async def test_webhooks_are_kept_by_the_server(operator: Operator) -> None:
    app, beside = operator.app, operator.beside
    url = "http://192.0.2.1/hook?key=hunter2"

    made = await app.webhooks.create(
        "told", url, signing_secret=secret("WEBHOOK_A"), events=["run.failed"], tag=("a", "b")
    )
    changed = await app.webhooks.update("told", task="double", tag=None)
    paused = await app.webhooks.pause("told")
    resumed = await app.webhooks.resume("told")
    replayed = await app.webhooks.replay("told", since=beside.time() - timedelta(hours=1))

    assert made.url == "http://192.0.2.1/hook?[redacted]"
    assert made.created_by is not None
    assert made.created_by.id == operator.actor_id
    assert (changed.task, changed.tag) == ("double", None)
    assert [it.state for it in (paused, resumed, replayed)] == ["paused", "active", "active"]
    [stored] = await beside.storage.webhooks("default")
    assert url in stored.body
    assert list(await app.webhooks.list()) == list(await beside.webhooks.list())
    await app.webhooks.delete("told")
    assert await beside.webhooks.list() == []
    assert ("delete_webhook", "told", "on call") in await operator.log()


async def test_keys_are_made_by_a_key_that_may(operator: Operator) -> None:
    keys = session_of(operator.app).keys

    made = await keys.create("ci", ["read"], expires_in=3600, by=ADA)
    rotated = await keys.rotate(made.key.id, 60)
    revoked = await keys.revoke(made.key.id)

    assert made.text.startswith(f"pk_{made.key.id}_")
    assert rotated.text != made.text
    assert revoked.revoked_at is not None
    assert {it.id for it in await keys.list()} == {
        it.id for it in await Keys(operator.beside.runtime).list()
    }
    with pytest.raises(InvalidInput, match="makes none for 'elsewhere'"):
        await keys.create("ci", ["read"], environment="elsewhere", by=ADA)
    with pytest.raises(AccessRefused, match="gives no key that may do more"):
        await keys.create("ci", ["work"], by=ADA)


async def test_errors_come_back_as_what_they_were(operator: Operator) -> None:
    app, run_id = operator.app, await later(operator.beside)

    with pytest.raises(RunNotFound):
        await app.runs.cancel(NOBODY)
    with pytest.raises(NotAllowed, match="cannot resume"):
        await app.runs.resume(run_id)
    with pytest.raises(NotAllowed, match="cannot retry"):
        await app.runs.retry(run_id)
    with pytest.raises(ScheduleNotFound):
        await app.schedules.pause("nightly")
    with pytest.raises(TaskNotFound):
        await app.limits.set("nothing", concurrency=1)
    with pytest.raises(QueueNotFound, match="did you mean numbers"):
        await app.queues.pause("number")
    with pytest.raises(WebhookNotFound):
        await app.webhooks.pause("nobody")
    with pytest.raises(KeyNotFound):
        await session_of(app).keys.revoke("nobody")
    with pytest.raises(InvalidInput, match="cannot be part of a path"):
        await app.queues.pause("..")
    with pytest.raises(InvalidInput, match="cannot be chosen over HTTP"):
        await app.runs.rerun(run_id, new_id=NOBODY)


async def test_a_name_with_a_slash_is_one_name(operator: Operator) -> None:
    await operator.app.queues.pause("shop/mail", reason="holidays", create=True)

    queue = await operator.beside.queues.get("shop/mail")
    assert queue.paused is not None


async def test_only_a_run_as_it_was_seen_is_steered(operator: Operator) -> None:
    app, run_id = operator.app, await later(operator.beside)
    seen = await app.runs.get(run_id)
    await operator.beside.runs.pause(run_id)

    with pytest.raises(SequenceConflict, match="is at sequence 3, not at 2"):
        await app.runs.cancel(run_id, expected=seen.sequence)

    assert (await app.runs.get(run_id)).status is Status.PAUSED


@pytest.mark.parametrize("scopes", [["read"], ["work", "trigger"], ["admin"]])
async def test_a_key_without_operate_changes_nothing(world: World, scopes: list[str]) -> None:
    made, run_id = await Keys(world.app.runtime).create("k", scopes, by=ADA), await later(world.app)
    async with App(world.address, api_key=made.text) as app:
        with pytest.raises(AccessRefused, match="needs the scope operate"):
            await app.runs.cancel(run_id)

    assert (await world.app.runs.get(run_id)).status is Status.SCHEDULED


async def test_a_key_that_only_operates_is_told_what_became_of_the_run(world: World) -> None:
    made, run_id = (
        await Keys(world.app.runtime).create("k", ["operate"], by=ADA),
        await later(world.app),
    )
    async with App(world.address, api_key=made.text) as app:
        cancelled = await app.runs.cancel(run_id)
        with pytest.raises(AccessRefused, match="needs the scope read"):
            await app.runs.get(run_id)

    assert cancelled.status is Status.CANCELLED


async def test_who_may_only_trigger_needs_to_know_nothing(world: World) -> None:
    from perdure.app.session import session_of

    made = await Keys(world.app.runtime).create("site", ["trigger"], by=ADA)
    async with App(world.address, api_key=made.text) as app:
        asked: dict[str, Any] = {"number": 4}
        run = await session_of(app).trigger_known(
            "double", asked, TriggerOptions(priority=3, tags={"a": "b"})
        )
        again = await session_of(app).trigger_known(
            "double", asked, TriggerOptions(idempotency_key="k")
        )
        same = await session_of(app).trigger_known(
            "double", asked, TriggerOptions(idempotency_key="k")
        )
        with pytest.raises(InvalidInput, match="no such argument"):
            await session_of(app).trigger_known("double", {"nmber": 1}, TriggerOptions())
        with pytest.raises(AccessRefused, match="needs the scope read"):
            await app.runs.get(run.id)

    stored = await world.app.runs.get(run.id)
    assert (stored.priority, stored.tags, stored.payload) == (3, {"a": "b"}, asked)
    assert (run.created, again.id, same.created) == (True, same.id, False)


async def test_an_app_that_may_only_trigger_does_so_with_its_own_code(world: World) -> None:
    made = await Keys(world.app.runtime).create("site", ["trigger"], by=ADA)
    async with shop(world.address, api_key=made.text) as app:
        run = await app.tasks["double"].trigger(4)

    assert (await world.app.runs.get(run.id)).created_by.id == made.key.actor.id


async def test_a_request_that_no_server_took_raises_storage_unavailable() -> None:
    from perdure.engine.runtime.clock import SystemClock
    from perdure.storage import open_server
    from perdure.storage.contract.rest import RestRequest

    transport = open_server("http://127.0.0.1:9", SystemClock(), retries=1)
    for method in ("GET", "POST"):
        with pytest.raises(StorageUnavailable, match="cannot connect"):
            await transport.request(RestRequest(method=method, path="/v1/runs"))
    transport.close()
