"""Who did it and why, as every order of an operator takes it; and what is done about what an
earlier version of us wrote without looking."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import App, Manifest, Retry, every, secret
from perdure.core.limits.settings import Source
from perdure.core.run.run import Actor, ActorType
from perdure.engine.client.handle import RunHandle
from perdure.engine.manifests.apply import Manifests
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.operators.keys import Keys
from perdure.engine.operators.limits import Limits, Queues
from perdure.engine.operators.runs import DeadLetters, Runs
from perdure.engine.operators.workers import Workers
from perdure.engine.schedules.operators import Schedules
from perdure.engine.webhooks.operators import Webhooks
from perdure.errors import InvalidInput, RunFailed
from waiting import MAX_WAIT_S

Order = Callable[[App, RunHandle[Any], dict[str, Any]], Awaitable[object]]

THEN = datetime(2020, 1, 1, tzinfo=UTC)
MANIFEST = "schedules:\n  - {name: m, every: 60, task: send}\n"

NO_TYPE: Any = "nobody"
BAD_NAMES: list[Any] = [5, None, b"x", {}, ["alice"], "", "a\nb", "\ud800", "x" * 300]
BAD_NAMES += [Actor(NO_TYPE, "x"), Actor(ActorType.OPERATOR, "")]
BAD_REASONS: list[Any] = [5, b"x", {}, ["why"], "a\0b", "\ud800", "x" * 20_000]

SIGNED: dict[str, Order] = {
    "runs.cancel": lambda app, run, how: app.runs.cancel(run, **how),
    "runs.pause": lambda app, run, how: app.runs.pause(run, **how),
    "runs.resume": lambda app, run, how: app.runs.resume(run, **how),
    "runs.reschedule": lambda app, run, how: app.runs.reschedule(run, priority=1, **how),
    "runs.wake": lambda app, run, how: app.runs.wake(run, **how),
    "runs.retry": lambda app, run, how: app.runs.retry(run, **how),
    "runs.rerun": lambda app, run, how: app.runs.rerun(run, **how),
    "runs.reset_idempotency_key": lambda app, run, how: app.runs.reset_idempotency_key(run, **how),
    "dead_letters.replay": lambda app, run, how: app.dead_letters.replay(run, **how),
    "dead_letters.discard": lambda app, run, how: app.dead_letters.discard(run, **how),
    "queues.pause": lambda app, run, how: app.queues.pause("mail", **how),
    "queues.set": lambda app, run, how: app.queues.set("mail", concurrency=1, **how),
    "queues.resume": lambda app, run, how: app.queues.resume("mail", **how),
    "queues.reset": lambda app, run, how: app.queues.reset("mail", **how),
    "limits.reset": lambda app, run, how: app.limits.reset("send", **how),
    "limits.set": lambda app, run, how: app.limits.set("send", concurrency=1, **how),
    "schedules.create": lambda app, run, how: app.schedules.create("y", every(9), "send", **how),
    "schedules.update": lambda app, run, how: app.schedules.update("x", priority=1, **how),
    "schedules.replace": lambda app, run, how: app.schedules.replace("x", every(9), "send", **how),
    "schedules.pause": lambda app, run, how: app.schedules.pause("x", **how),
    "schedules.resume": lambda app, run, how: app.schedules.resume("x", **how),
    "schedules.delete": lambda app, run, how: app.schedules.delete("x", **how),
    "schedules.trigger": lambda app, run, how: app.schedules.trigger("x", **{"reason": "r"} | how),
    "schedules.backfill": lambda app, run, how: app.schedules.backfill(
        "x", THEN, THEN, **{"reason": "r"} | how
    ),
    "schedules.apply": lambda app, run, how: app.schedules.apply([], **how),
    "workers.drain": lambda app, run, how: app.workers.drain("worker_1", **how),
    "webhooks.create": lambda app, run, how: app.webhooks.create(
        "hook", "https://example.com/", signing_secret=secret("HOOK"), **how
    ),
    "webhooks.update": lambda app, run, how: app.webhooks.update("known", task="send", **how),
    "webhooks.pause": lambda app, run, how: app.webhooks.pause("known", **how),
    "webhooks.resume": lambda app, run, how: app.webhooks.resume("known", **how),
    "webhooks.replay": lambda app, run, how: app.webhooks.replay("known", since=THEN, **how),
    "webhooks.test": lambda app, run, how: app.webhooks.test("known", **how),
    "webhooks.delete": lambda app, run, how: app.webhooks.delete("known", **how),
    "keys.create": lambda app, run, how: Keys(app.runtime).create("ci", ["read"], **how),
    "keys.revoke": lambda app, run, how: Keys(app.runtime).revoke("0123456789ab", **how),
    "keys.rotate": lambda app, run, how: Keys(app.runtime).rotate("0123456789ab", **how),
    "manifests.apply": lambda app, run, how: app.manifests.apply(
        Manifest.parse(MANIFEST, "m.yaml"), **how
    ),
}
REASONED = (
    "cancel pause reschedule retry rerun reset_idempotency_key replay discard update delete trigger"
    " backfill drain replace"
)
GIVES_REASON = [
    name
    for name in SIGNED
    if name.split(".")[1] in REASONED.split() and not name.startswith("webhooks.")
]
IN_AUDIT_LOG = {
    "queues.resume": ("resume_queue", "mail"),
    "queues.reset": ("reset_queue", "mail"),
    "limits.reset": ("reset_limit", "send"),
    "webhooks.update": ("change_webhook", "known"),
    "webhooks.pause": ("pause_webhook", "known"),
    "webhooks.resume": ("resume_webhook", "known"),
    "webhooks.replay": ("replay_webhook", "known"),
    "webhooks.test": ("test_webhook", "known"),
    "webhooks.delete": ("delete_webhook", "known"),
}
"""The orders that leave their actor nowhere else, and their entries."""
HOMES = {
    "runs": Runs,
    "dead_letters": DeadLetters,
    "queues": Queues,
    "limits": Limits,
    "schedules": Schedules,
    "workers": Workers,
    "webhooks": Webhooks,
    "keys": Keys,
    "manifests": Manifests,
}


@pytest.fixture
def app(sqlite_storage_url: str) -> App:
    return make_app(sqlite_storage_url)


def make_app(url: str) -> App:
    app = App(url)
    app.queue("mail", concurrency=5)

    @app.task(queue="mail", concurrency=3, retry=Retry(max_attempts=1))
    async def send() -> int:
        return 1

    app.schedule(every(3600), name="x")(send)
    return app


@pytest.mark.parametrize("name", SIGNED)
async def test_nobody_acts_under_a_name_that_cannot_be_kept(app: App, name: str) -> None:
    async with app:
        run = await app.tasks["send"].options(delay=60, idempotency_key="k").trigger()
        before = await _everything(app, run)
        for by in BAD_NAMES:
            with pytest.raises(InvalidInput, match=r"^by"):
                await SIGNED[name](app, run, {"by": by})
        assert await _everything(app, run) == before


@pytest.mark.parametrize("name", IN_AUDIT_LOG)
async def test_the_audit_log_keeps_the_actor_of_an_order_that_nothing_else_keeps(
    storage_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "0123456789abcdef0123456789abcdef")
    async with make_app(storage_url) as app:
        url = "http://127.0.0.1:1/"
        await app.webhooks.create("known", url, signing_secret=secret("HOOK"))
        run = await app.tasks["send"].options(delay=60).trigger()
        await SIGNED[name](app, run, {"by": "ada"})
        [sealed] = await AuditLog(app.runtime).read()

    entry = sealed.entry
    assert (entry.action, entry.target) == IN_AUDIT_LOG[name]
    assert (entry.actor, entry.outcome) == (Actor(ActorType.OPERATOR, "ada"), "done")


@pytest.mark.parametrize("name", GIVES_REASON)
async def test_a_reason_is_text_that_can_be_kept_as_it_is(app: App, name: str) -> None:
    async with app:
        run = await app.tasks["send"].options(delay=60, idempotency_key="k").trigger()
        before = await _everything(app, run)
        for reason in BAD_REASONS:
            with pytest.raises(InvalidInput, match=r"^reason"):
                await SIGNED[name](app, run, {"reason": reason})
        assert await _everything(app, run) == before


@pytest.mark.parametrize("name", SIGNED)
def test_who_acts_is_said_by_keyword_so_that_it_is_never_taken_for_the_reason(name: str) -> None:
    home, action = name.split(".")
    parameters = inspect.signature(getattr(HOMES[home], action)).parameters

    assert parameters["by"].kind is inspect.Parameter.KEYWORD_ONLY
    assert ("reason" in parameters) is (name in GIVES_REASON)


def test_every_order_that_takes_a_name_or_a_reason_stands_in_the_table() -> None:
    taking = {
        f"{name}.{action}"
        for name, home in HOMES.items()
        for action, method in inspect.getmembers(home, inspect.isfunction)
        if {"by", "reason"} & set(inspect.signature(method).parameters) and action[0] != "_"
    }
    assert taking == set(SIGNED)


async def test_what_a_plain_name_did_is_read_back_after_the_next_start(
    sqlite_storage_url: str,
) -> None:
    async with make_app(sqlite_storage_url) as app:
        await app.queues.pause("mail", "  the provider is down ", by="alice")
        await app.queues.set("mail", concurrency=1, by="bob")
        await app.limits.set("send", rate="5/s", by="carol")

    async with make_app(sqlite_storage_url) as app:
        queue, limits = await app.queues.get("mail"), await app.limits.get("send")
    assert queue.paused is not None
    assert queue.paused.by == Actor(ActorType.OPERATOR, "alice")
    assert queue.paused.reason == "the provider is down"
    assert queue.concurrency.value == 1
    assert queue.concurrency.by == Actor(ActorType.OPERATOR, "bob")
    assert limits.rate.by == Actor(ActorType.OPERATOR, "carol")


async def test_pausing_again_with_another_reason_tells_the_newer_one(app: App) -> None:
    async with app:
        await app.queues.pause("mail", "one", by="alice")
        again = await app.queues.pause("mail", by="bob")
        newer = await app.queues.pause("mail", "two", by="bob")
    assert again.paused is not None
    assert again.paused.reason == "one"
    assert newer.paused is not None
    assert (newer.paused.reason, newer.paused.by.id) == ("two", "bob")


async def test_a_setting_without_anything_set_is_refused(app: App) -> None:
    async with app:
        with pytest.raises(InvalidInput, match="nothing is set; give concurrency, rate or fair"):
            await app.queues.set("mail")
        with pytest.raises(InvalidInput, match="nothing is set"):
            await app.limits.set("send")


async def test_a_reset_key_is_written_down_with_who_and_why(app: App) -> None:
    async with app:
        run = await app.tasks["send"].options(delay=60, idempotency_key="k").trigger()
        await app.runs.reset_idempotency_key(run, "sent twice by hand", by="alice")
        [entry] = await AuditLog(app.runtime).read()
        assert (await app.tasks["send"].options(idempotency_key="k").trigger()).id != run.id
    assert entry.entry.action == "reset_idempotency_key"
    assert (entry.entry.target, entry.entry.actor.id) == (run.id, "alice")
    assert entry.entry.reason == "sent twice by hand"


async def test_why_a_letter_was_discarded_is_kept_with_it(storage_url: str) -> None:
    app = App(storage_url)

    @app.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def broken() -> None:
        raise ValueError("no")

    async with app.run_all():
        run = await broken.trigger()
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)
        await app.dead_letters.discard(run, "the customer left", by="alice")
        letter = await app.dead_letters.get(run)
        why = await app.runs.why(run)
    assert letter.closed_reason == "the customer left"
    assert "discarded by operator alice: the customer left." in str(why)


# What an earlier version wrote without looking


async def test_a_limit_that_cannot_be_read_still_holds_and_only_an_operator_changes_it(
    sqlite_storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_app(sqlite_storage_url) as app:
        await app.queues.set("mail", concurrency=2, rate="7/1m", fair=True, by="alice")
        await app.queues.pause("mail", "x", by="alice")
        run = await app.tasks["send"].trigger()
    _damage(app, "perdure_limits", "scope = 'queue'")

    async with make_app(sqlite_storage_url) as app:
        found = await app.queues.get("mail")
        why = await app.runs.why(run)
        assert [queue.name for queue in await app.queues.list()] == ["mail"]
        resumed = await app.queues.resume("mail")
        code = await app.queues.reset("mail")

    assert "nobody can read who set the limit of queue mail" in caplog.text
    assert (found.concurrency.value, found.concurrency.by) == (2, None)
    assert found.rate.value.pace.interval.total_seconds() == pytest.approx(60 / 7)
    assert found.fair.value is True
    assert found.paused is not None
    assert "Queue mail is paused: who paused it cannot be read" in str(why)
    assert resumed.paused is None
    assert resumed.concurrency.value == 2
    assert code.concurrency.source is Source.NOBODY

    async with make_app(sqlite_storage_url) as app:
        assert (await app.queues.get("mail")).concurrency.value == 5  # code speaks again
        async with app.worker():
            assert await app.runs.handle(run).result(MAX_WAIT_S) == 1


async def test_a_schedule_that_cannot_be_read_hides_no_other_and_lets_the_app_open(
    sqlite_storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_app(sqlite_storage_url) as app:
        pass
    _damage(app, "perdure_schedules", "name = 'x'")

    app = make_app(sqlite_storage_url)
    app.schedule(every(60), name="another")(app.tasks["send"])
    async with app:
        assert [schedule.id for schedule in await app.schedules.list()] == ["another"]
        assert [schedule.id for schedule in await app.schedules.list(limit=1)] == ["another"]
    assert "unreadable schedule" in caplog.text


def _damage(app: App, table: str, which: str) -> None:
    with closing(sqlite3.connect(app.url.removeprefix("sqlite:///"))) as file, file:
        change = f'UPDATE {table} SET body = replace(body, \'"by":{{\', \'"by":5,"was":{{\')'
        assert file.execute(f"{change} WHERE {which}").rowcount == 1


async def _everything(app: App, run: RunHandle[Any]) -> Any:
    return (
        await app.runs.events(run),
        await app.queues.list(),
        await app.limits.list(),
        await app.schedules.list(),
        await app.webhooks.list(),
        await Keys(app.runtime).list(),
        await AuditLog(app.runtime).read(),
    )
