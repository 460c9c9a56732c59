"""Webhooks are told of runs: signed, in order, at least once, whoever fails in between."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

import hook_kit
from builders import OPERATOR
from endpoints import Asked, Silence, answering
from hook_kit import EAGER, OTHER, SECRET, SIGNED, Receiver, settle, telling
from perdure import App, Context, Redaction, secret
from perdure.core.decide import decide_cancel
from perdure.core.explain.health import Code
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.lifecycle import Status
from perdure.core.webhook import WebhookState
from perdure.engine.runtime.secret import Secret
from perdure.engine.webhooks.sender import WebhookSender
from perdure.engine.webhooks.webhook import DeliveryOutcome
from perdure.telemetry import metrics
from perdure.telemetry.redactor import Redact
from waiting import MAX_WAIT_S

ENDINGS = ["run.succeeded", "run.failed"]


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)
    monkeypatch.setenv("WEBHOOK_OTHER", OTHER)


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    async with telling(storage_url) as app:
        yield app


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


async def subscribe(app: App, receiver: Receiver, name: str = "billing", **options: Any) -> None:
    options.setdefault("events", ENDINGS)
    options.setdefault("signing_secret", SIGNED)
    await app.webhooks.create(name, receiver.url, **options)


async def send(app: App) -> None:
    await app.webhook_sender().run_once()


# What is told


async def test_an_event_is_posted_with_its_run_as_it_was_then(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver, events=["run.started"])

    [run_id] = await settle(app, tags={"team": "red"})
    await send(app)

    [asked] = receiver.taken
    assert (asked.method, asked.json["type"]) == ("POST", "run.started")
    assert asked.json["timestamp"] == asked.json["data"]["occurred_at"]
    run = asked.json["data"]["run"]
    assert (run["id"], run["task"], run["queue"]) == (run_id, "double", "numbers")
    assert (run["status"], run["attempts"], run["finished_at"]) == ("running", 1, None)
    assert run["tags"] == {"team": "red"}
    assert {"payload", "result"} & set(run) == set()
    assert (await app.runs.get(run_id)).status is Status.SUCCEEDED


async def test_a_payload_is_told_only_if_asked_for_and_without_its_secrets(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver, with_payload=True)

    async with app.worker(concurrency=1):
        run = await app.tasks["double"].trigger(number=21, password="hunter2hunter2")
        await run.result(MAX_WAIT_S)
    await send(app)

    [told] = receiver.taken
    assert told.json["data"]["run"]["payload"] == {"number": 21, "password": "[redacted]"}
    assert told.json["data"]["run"]["result"] == 42
    assert b"hunter2" not in told.body


async def test_others_can_verify_the_signature_with_either_secret_of_a_rotation(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver, signing_secret=[secret("WEBHOOK_OTHER"), SIGNED])

    await settle(app)
    await send(app)

    [told] = receiver.taken
    for known in (SECRET, OTHER):
        assert Verifier(known).verify(told.body, told.headers)["type"] == "run.succeeded"
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(told.body + b" ", told.headers)
    with pytest.raises(WebhookVerificationError):
        Verifier("whsec_" + "x" * 32).verify(told.body, told.headers)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"events": ["run.*"], "task": "fragile"}, 4),
        ({"task": "double"}, 1),
        ({"queue": "numbers"}, 1),
        ({"queue": "elsewhere"}, 0),
        ({"tag": ("team", "red")}, 2),
        ({"tag": ("team", "blue")}, 0),
        ({"status": "failed"}, 1),
        ({"events": ["run.*"], "status": "running"}, 2),
        ({"events": ["run.created"], "status": "succeeded"}, 0),
    ],
)
async def test_only_what_fits_every_filter_is_told(
    app: App, receiver: Receiver, filters: dict[str, Any], expected: int
) -> None:
    await subscribe(app, receiver, **filters)

    for task in ("double", "fragile"):
        await settle(app, task=task, tags={"team": "red"})
    await send(app)

    assert len(receiver.taken) == expected, receiver.events


async def test_another_environment_is_not_told(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    elsewhere = telling(app.url, environment="elsewhere")

    async with elsewhere:
        await settle(elsewhere)
        await send(elsewhere)
    await WebhookSender(app, None).run_once()
    assert receiver.taken == []

    await settle(app)
    await WebhookSender(app, None).run_once()
    assert receiver.events == ["run.succeeded"]


async def test_what_happened_before_it_was_made_is_told_only_from_a_given_time_on(
    app: App, receiver: Receiver
) -> None:
    await settle(app)
    middle = await app.storage.now()
    late = await settle(app, 2)
    await subscribe(app, receiver)
    await subscribe(app, receiver, "past", since=middle)

    await send(app)

    assert {asked.json["data"]["run"]["id"] for asked in receiver.taken} == set(late)
    assert {asked.headers["perdure-webhook"] for asked in receiver.taken} == {"past"}


async def test_events_of_a_run_come_in_order_and_each_once(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver, events=["run.*"])

    run_ids = await settle(app, 60)
    await send(app)

    sequences: dict[str, list[int]] = {}
    for asked in receiver.taken:
        data = asked.json["data"]
        sequences.setdefault(data["run"]["id"], []).append(data["sequence"])
    assert sequences == {run_id: [1, 2, 3, 4] for run_id in run_ids}


async def test_commits_that_stand_in_the_feed_the_wrong_way_round_are_told_in_order(
    postgres_storage_url: str, receiver: Receiver
) -> None:
    """A handler's transaction began before the cancel request that its success comes after."""
    app = telling(postgres_storage_url)
    writing, asked_to_stop = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("SELECT pg_current_xact_id()")
            writing.set()
            await asked_to_stop.wait()

    async with app:
        await subscribe(app, receiver, events=["run.*"])
        async with app.worker(concurrency=1, same_loop=True):
            run = await slow.trigger()
            await asyncio.wait_for(writing.wait(), MAX_WAIT_S)
            await app.storage.commit([await _cancel(app, run.id)])
            asked_to_stop.set()
            await run.result(MAX_WAIT_S)
        await send(app)
        feed = [it.sequence for change in await app.storage.changes(None, limit=100)
                for it in change.events]  # fmt: skip

    assert feed != sorted(feed), "the feed was in order: nothing was put right"
    assert [asked.json["data"]["sequence"] for asked in receiver.taken] == sorted(feed)


async def _cancel(app: App, run_id: str) -> Commit:
    """Past `app.runs.cancel`, which would tell the worker at once."""
    run = await app.runs.get(run_id)
    return prepare_commit(run, decide_cancel(run, OPERATOR, app.time()), app.ids.commit_id())


async def test_a_running_service_tells_without_being_asked(app: App, receiver: Receiver) -> None:
    async with app.webhook_sender():
        await subscribe(app, receiver)
        await settle(app, 3)
        await receiver.until(lambda: len(receiver.taken) == 3)

    hook = await app.webhooks.get("billing")
    assert (hook.state, hook.posts) == (WebhookState.ACTIVE, 3)


# Trouble


async def test_what_fails_is_sent_again_under_the_same_id_until_it_is_taken(
    app: App, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.webhooks")
    receiver.answer = answering(503)
    await subscribe(app, receiver)
    await settle(app, 5)

    await send(app)
    hook = await app.webhooks.get("billing")
    assert (hook.state, hook.failures) == (WebhookState.FAILING, 1)
    assert "answered 503" in (hook.why or "")
    await send(app)
    refused = len(receiver.taken)
    receiver.answer = answering(204)
    await send(app)

    taken = receiver.ids[refused:]
    assert len(taken) == len(set(taken)) == 5
    assert set(receiver.ids[:refused]) <= set(taken)
    assert (await app.webhooks.get("billing")).state is WebhookState.ACTIVE
    said = [record.getMessage() for record in caplog.records]
    assert "webhook billing works again" in said


async def test_what_was_taken_beside_a_failure_is_not_sent_again(
    app: App, receiver: Receiver
) -> None:
    """Four are posted side by side; one of them fails, and only that one comes again."""
    poison: list[str] = []

    async def mostly(asked: Asked, writer: asyncio.StreamWriter) -> None:
        poison[:] = poison or [asked.headers["webhook-id"]]
        is_bad = asked.headers["webhook-id"] in poison and broken
        await answering(500 if is_bad else 200)(asked, writer)

    broken = True
    receiver.answer = mostly
    await subscribe(app, receiver)
    await settle(app, 30)
    await send(app)
    await send(app)
    broken = False
    await send(app)

    counts = receiver.counts
    assert counts.pop(poison[0]) == 3
    assert len(counts) == 29
    assert set(counts.values()) == {1}


async def test_an_endpoint_that_is_not_there_is_tried_again(app: App) -> None:
    async with Receiver() as receiver:
        await subscribe(app, receiver)
    await settle(app)

    await send(app)

    hook = await app.webhooks.get("billing")
    assert (hook.state, hook.failures) == (WebhookState.FAILING, 1)
    assert "cannot connect" in (hook.why or "")


async def test_retry_after_is_honoured(app: App, receiver: Receiver) -> None:
    receiver.answer = answering(429, retry_after="3600")
    await subscribe(app, receiver)
    await settle(app)

    await send(app)
    await send(app)

    hook = await app.webhooks.get("billing")
    assert len(receiver.taken) == 1
    assert hook.next_try_at is not None
    assert timedelta(minutes=59) < hook.next_try_at - app.time() < timedelta(minutes=61)


async def test_who_is_gone_is_disabled_at_once_with_a_notice(
    app: App, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = answering(410)
    await subscribe(app, receiver)
    await settle(app)

    await send(app)
    await send(app)

    hook = await app.webhooks.get("billing")
    assert (hook.state, len(receiver.taken)) == (WebhookState.DISABLED, 1)
    assert hook.disabled is not None
    assert "answered 410" in hook.disabled.why
    [record] = [it for it in caplog.records if it.levelno == logging.ERROR]
    assert record.message.startswith("webhook billing is disabled: ")


async def test_a_dead_endpoint_is_disabled_and_resumes_where_it_stopped(
    storage_url: str, receiver: Receiver
) -> None:
    defaults = replace(EAGER, webhook_failures=3, webhook_patience=timedelta(0))
    receiver.answer = answering(500)
    async with telling(storage_url, defaults) as app:
        await subscribe(app, receiver)
        await settle(app, 2)
        for _ in range(6):
            await send(app)
        disabled = await app.webhooks.get("billing")
        assert disabled.state is WebhookState.DISABLED
        assert disabled.disabled is not None
        assert disabled.disabled.why.startswith("3 failures in a row since ")
        receiver.answer = answering()
        receiver.taken.clear()

        await send(app)
        assert receiver.taken == []
        await app.webhooks.resume("billing")
        await send(app)

    assert len(receiver.counts) == 2


async def test_redirects_are_not_followed(app: App, receiver: Receiver) -> None:
    async with Receiver() as inside:
        receiver.answer = answering(302, location=inside.url)
        await subscribe(app, receiver)
        await settle(app)

        await send(app)

        assert inside.asked == []
    assert "redirects are not followed" in ((await app.webhooks.get("billing")).why or "")


async def test_what_is_not_public_is_refused_unless_an_operator_allows_it(
    storage_url: str, receiver: Receiver
) -> None:
    async with telling(storage_url, replace(EAGER, http_allow="")) as app:
        await subscribe(app, receiver)
        await settle(app)

        await send(app)

        why = (await app.webhooks.get("billing")).why
    assert receiver.asked == []
    assert "127.0.0.1 is not public: loopback" in (why or "")


async def test_a_silent_endpoint_is_given_up_after_its_time_and_keeps_nobody_waiting(
    storage_url: str, receiver: Receiver
) -> None:
    silence = Silence()
    defaults = replace(EAGER, webhook_timeout=timedelta(seconds=60))
    async with telling(storage_url, defaults) as app, Receiver(silence) as silent:
        await subscribe(app, silent, "silent")
        await subscribe(app, receiver, "quick")
        async with app.webhook_sender():
            await settle(app)
            await asyncio.wait_for(silent.came.wait(), MAX_WAIT_S)
            await receiver.until(lambda: len(receiver.taken) == 1)
            await settle(app, 2)
            await receiver.until(lambda: len(receiver.taken) == 3)
            assert silent.taken == []
            silence.over.set()

    async with telling(storage_url, replace(EAGER, webhook_timeout=timedelta(seconds=0.2))) as app:
        async with Receiver(Silence()) as silent:
            await app.webhooks.update("silent", url=silent.url)
            await send(app)
        assert (await app.webhooks.get("silent")).why == "no answer within 0.2 s"


async def test_a_secret_that_cannot_be_had_is_said_and_nothing_is_sent(
    app: App, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2hunter2")
    await subscribe(app, receiver, "missing", signing_secret=secret("WEBHOOK_MISSING"))
    await subscribe(app, receiver, "greedy", headers={"x": secret("DATABASE_PASSWORD")})
    await settle(app)

    await send(app)

    assert receiver.asked == []
    for name, word in (("missing", "WEBHOOK_MISSING"), ("greedy", "DATABASE_PASSWORD")):
        assert word in ((await app.webhooks.get(name)).why or "")


def fail(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    raise KeyError("hunter2hunter2")


def return_texts(message: str, fields: dict[str, Any]) -> Any:
    return message, "hunter2hunter2"


@pytest.mark.parametrize(("broken", "fault"), [(fail, "KeyError"), (return_texts, "TypeError")])
async def test_whatever_a_filter_of_secrets_does_nothing_unfiltered_is_told(
    storage_url: str, receiver: Receiver, broken: Redact, fault: str
) -> None:
    async with telling(storage_url) as app:
        await subscribe(app, receiver)
        await settle(app)
    async with telling(storage_url, redact=broken) as app:
        await send(app)

    [told] = receiver.taken
    assert f"{fault} in redact" in told.json["data"]["left_out"]
    assert told.json["data"]["run"]["status"] == "succeeded"
    assert b"hunter2" not in told.body


# Several senders, and the end of one


async def test_two_senders_at_once_skip_nothing_and_repeat_nothing(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver, events=["run.*"])
    twin = telling(app.url)

    async with app.webhook_sender(), twin, twin.webhook_sender():
        run_ids = await settle(app, 80)
        await receiver.until(lambda: len(receiver.counts) == 4 * len(run_ids))

    assert set(receiver.counts.values()) == {1}


@pytest.mark.parametrize(
    ("statement", "turn"),
    [("update_webhook", 2), ("insert_deliveries", 1), ("trim_deliveries", 1)],
    ids=["before the cursor moves", "while it moves", "before it is committed"],
)
async def test_who_is_killed_between_post_and_cursor_leaves_it_to_be_sent_again(
    app: App, receiver: Receiver, statement: str, turn: int
) -> None:
    await subscribe(app, receiver)
    run_ids = await settle(app, 6)

    words = json.dumps([app.url, statement, turn])
    command = [sys.executable, hook_kit.__file__, words]
    killed = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(killed.communicate(), MAX_WAIT_S)
    assert killed.returncode == -9, said.decode()
    first = set(receiver.ids)
    assert len(first) == 6

    async with app.webhook_sender():
        await receiver.until(lambda: all(count == 2 for count in receiver.counts.values()))

    assert set(receiver.counts) == first
    assert {asked.json["data"]["run"]["id"] for asked in receiver.taken} == set(run_ids)
    assert (await app.webhooks.get("billing")).posts == 6


async def test_a_sender_that_stops_writes_down_what_it_has_posted(
    app: App, receiver: Receiver
) -> None:
    silence = Silence()
    receiver.answer = silence
    await subscribe(app, receiver)
    await settle(app, 20)
    sender = app.webhook_sender()

    async with sender:
        await asyncio.wait_for(receiver.came.wait(), MAX_WAIT_S)
        receiver.answer = answering()
        stopping = asyncio.create_task(sender.stop())
        await asyncio.wait([stopping], timeout=0)
        silence.over.set()
        await stopping
    before = len(receiver.asked)
    await send(app)

    delivered = [
        it.message_id
        for it in await app.webhooks.deliveries("billing", limit=100)
        if it.outcome is DeliveryOutcome.DELIVERED
    ]
    assert before < 20
    assert len(delivered) == len(set(delivered)) == 20


# What is kept


async def test_the_latest_deliveries_are_kept_with_what_came_of_them(
    app: App, receiver: Receiver
) -> None:
    receiver.answer = answering(500, {"oops": "no"})
    await subscribe(app, receiver)
    [run_id] = await settle(app)
    await send(app)
    receiver.answer = answering(200, {"thank": "you"})
    await send(app)

    taken, refused = await app.webhooks.deliveries("billing")

    assert (taken.number, taken.outcome, taken.status, taken.error) == (2, "delivered", 200, None)
    assert (refused.number, refused.outcome, refused.status) == (1, "failed", 500)
    assert "answered 500" in (refused.error or "")
    assert (refused.response, taken.run_id) == ('{"oops": "no"}', run_id)
    assert taken.message_id == refused.message_id == f"{run_id}-{taken.sequence}"
    assert await app.webhooks.deliveries("billing", before=2) == [refused]


async def test_the_posts_are_counted(app: App, receiver: Receiver) -> None:
    async with app.webhook_sender():
        await subscribe(app, receiver)
        await settle(app, 2)
        await receiver.until(lambda: len(receiver.taken) == 2)
        text = await app.metrics.prometheus()

    assert 'perdure_webhook_posts_total{outcome="delivered"} 2' in text
    assert 'perdure_webhooks{state="active"}' in text
    assert "perdure_webhook_lag_seconds_count 2" in text
    assert metrics.WEBHOOK_POSTS.name in text


async def test_planted_secrets_are_nowhere_afterwards(
    storage_url: str,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    planted = "planted-0123456789-secret"
    monkeypatch.setenv("WEBHOOK_HEADER", planted)

    async def tell_all(asked: Asked, writer: asyncio.StreamWriter) -> None:
        said = {"headers": asked.headers, "key": SECRET, "also": f"password={planted}"}
        await answering(500, said)(asked, writer)

    receiver.answer = tell_all
    redact = Redaction(patterns=["iban [A-Z0-9]+"])
    async with telling(storage_url, redact=redact) as app:
        headers: dict[str, str | Secret] = {
            "x-api": secret("WEBHOOK_HEADER", prefix="Token "),
            "authorization": "Bearer plain-text-bearer",
        }
        await app.webhooks.create(
            "billing",
            f"{receiver.url}?token=in-the-url-0123",
            signing_secret=SIGNED,
            headers=headers,
            with_payload=True,
        )
        async with app.worker(concurrency=1):
            run = await app.tasks["fragile"].trigger("iban DE0012345 is wrong")
            await asyncio.gather(run.result(MAX_WAIT_S), return_exceptions=True)
        await send(app)
        await app.webhooks.test("billing")
        shown = repr(await app.webhooks.list()) + repr(await app.webhooks.deliveries("billing"))
        stored = repr([await app.storage.webhooks(None), await _raw_deliveries(app)])

    assert receiver.asked[0].headers["x-api"] == f"Token {planted}"
    assert receiver.asked[0].path == "/hook?token=in-the-url-0123"
    bodies = b"".join(asked.body for asked in receiver.asked).decode()
    ours = [it for it in caplog.records if it.name.startswith("perdure.webhooks")]
    logged = "\n".join(str(vars(record)) for record in ours)
    assert ours
    for text in (bodies, shown, logged, stored):
        assert planted not in text
        assert SECRET.removeprefix("whsec_") not in text
        assert "DE0012345" not in text
    for text in (bodies, shown, logged):
        assert "plain-text-bearer" not in text
        assert "in-the-url" not in text


async def _raw_deliveries(app: App) -> Any:
    [hook] = await app.storage.webhooks(None)
    return await app.storage.deliveries(hook.id, limit=100)


async def test_changes_pruned_before_they_were_told_are_noticed_and_said(
    app: App, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribe(app, receiver)
    await app.webhooks.pause("billing")
    await settle(app, 2)
    assert await app.storage.prune(Status.SUCCEEDED, app.time() + timedelta(hours=1), 10) == 2
    [kept] = await settle(app)
    await app.webhooks.resume("billing")

    await send(app)
    await send(app)

    hook = await app.webhooks.get("billing")
    assert hook.gap is not None
    said = [it for it in caplog.records if "pruned before" in it.getMessage()]
    assert len(said) == 1
    assert [asked.json["data"]["run"]["id"] for asked in receiver.taken] == [kept]
    assert (await app.webhooks.resume("billing")).gap is None


async def test_pruning_what_was_told_is_no_gap(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    await settle(app, 2)
    await send(app)

    await app.storage.prune(Status.SUCCEEDED, app.time() + timedelta(hours=1), 10)
    await send(app)
    await settle(app)
    await send(app)

    assert (await app.webhooks.get("billing")).gap is None
    assert len(receiver.taken) == 3


async def test_a_place_where_nothing_concerns_it_is_kept_too(
    app: App, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(app, receiver, task="other")
    sender = app.webhook_sender()
    await settle(app)
    await sender.run_once()
    before = (await app.webhooks.get("billing")).cursor

    monkeypatch.setattr("perdure.engine.webhooks.sender.SAVE_EVERY", timedelta(0))
    await sender.run_once()

    kept = (await app.webhooks.get("billing")).cursor
    assert kept != before
    assert await app.storage.changes(kept, limit=1) == []


async def test_the_doctor_knows_how_webhooks_are(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    await subscribe(app, receiver, "idle", task="other")
    receiver.answer = answering(500)
    await settle(app)
    assert await findings(app) == set()
    await send(app)
    assert await findings(app) == {Code.WEBHOOKS_FAILING}
    receiver.answer = answering(410)
    await send(app)

    assert await findings(app) == {Code.WEBHOOKS_DISABLED}
    assert not (await app.doctor()).is_healthy


async def findings(app: App) -> set[Code]:
    found = {finding.code for finding in (await app.doctor()).findings}
    return {code for code in found if code.startswith("webhook")}


async def test_without_h11_nothing_is_sent_nothing_is_lost_and_it_is_said(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver)
    await settle(app)
    script = """
import asyncio, importlib.util, logging, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "h11" else find(name)
logging.basicConfig(level="ERROR")
from perdure import App
async def main():
    async with App(sys.argv[1]) as app:
        sender = app.webhook_sender()
        await sender.run_once()
        await sender.run_once()
asyncio.run(main())
"""
    command = [sys.executable, "-c", script, app.url]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(process.communicate(), MAX_WAIT_S)

    assert process.returncode == 0
    assert said.decode().count("pip install 'perdure[http]'") == 1
    assert receiver.asked == []
    await send(app)
    assert len(receiver.taken) == 1
