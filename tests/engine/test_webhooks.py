"""`app.webhooks`: made, changed, held, moved, tried out and deleted by operators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from standardwebhooks import Webhook as Verifier

from endpoints import answering
from hook_kit import EAGER, OTHER, SECRET, SIGNED, Receiver, settle, telling
from perdure import App, secret
from perdure.core.run.run import Actor, ActorType
from perdure.core.webhook import WebhookState
from perdure.errors import InvalidInput, WebhookNotFound

URL = "https://example.com/hook"
ENDED = ["run.succeeded"]


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


async def subscribe(app: App, receiver: Receiver) -> None:
    await app.webhooks.create("billing", receiver.url, signing_secret=SIGNED, events=ENDED)


async def send(app: App) -> None:
    await app.webhook_sender().run_once()


async def test_a_webhook_is_seen_as_it_was_made(app: App) -> None:
    made = await app.webhooks.create(
        "billing",
        f"{URL}?key=1",
        signing_secret=[SIGNED, secret("WEBHOOK_OTHER")],
        events=["run.failed", "run.dead_lettered"],
        task="double",
        queue="numbers",
        tag=("team", "red"),
        status="failed",
        headers={"x-plain": "yes", "authorization": "Bearer abcdefgh", "x-key": SIGNED},
        by="ada",
    )

    assert await app.webhooks.list() == [made]
    assert await app.webhooks.get("billing") == made
    assert (made.url, made.tag, made.status) == (f"{URL}?[redacted]", "team=red", "failed")
    assert made.events == ("run.failed", "run.dead_lettered")
    assert made.signing_secrets == ("WEBHOOK_TEST", "WEBHOOK_OTHER")
    assert made.headers == {
        "x-plain": "yes", "authorization": "[redacted]", "x-key": "secret WEBHOOK_TEST",
    }  # fmt: skip
    assert made.created_by == Actor(ActorType.OPERATOR, "ada")
    assert made.state is WebhookState.ACTIVE


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://me:pw@example.com/"}, "url"),
        ({"events": []}, "events"),
        ({"events": "run.failed"}, "events"),
        ({"events": ["run.exploded"]}, "events"),
        ({"status": "dancing"}, "status"),
        ({"tag": "team=red"}, "tag"),
        ({"task": 7}, "task"),
        ({"headers": {"webhook-id": "mine"}}, "headers.webhook-id"),
        ({"headers": {"x": "a\nb"}}, "headers.x"),
        ({"headers": ["x"]}, "headers"),
        ({"signing_secret": []}, "signing_secret"),
        ({"signing_secret": SECRET}, "signing_secrets"),
        ({"signing_secret": [SIGNED] * 5}, "signing_secret"),
        ({"with_payload": "yes"}, "with_payload"),
        ({"by": ""}, "by"),
    ],
)
async def test_bad_input_is_refused_and_names_its_field(
    app: App, changes: dict[str, Any], field: str
) -> None:
    wanted: dict[str, Any] = {"name": "billing", "url": URL, "signing_secret": SIGNED} | changes

    with pytest.raises(InvalidInput) as caught:
        await app.webhooks.create(**wanted)

    assert caught.value.field == field
    assert SECRET not in str(caught.value)
    assert await app.webhooks.list() == []


async def test_a_name_can_be_had_once(app: App) -> None:
    await app.webhooks.create("billing", URL, signing_secret=SIGNED)

    with pytest.raises(InvalidInput, match="there is a webhook 'billing' already"):
        await app.webhooks.create("billing", URL, signing_secret=SIGNED)
    async with telling(app.url, environment="elsewhere") as elsewhere:
        await elsewhere.webhooks.create("billing", URL, signing_secret=SIGNED)

    assert len(await app.webhooks.list()) == 1


async def test_what_is_not_there_is_said_to_be_so(app: App) -> None:
    nobody = app.webhooks
    for asked in (
        nobody.get("x"), nobody.update("x"), nobody.pause("x"), nobody.resume("x"),
        nobody.delete("x"), nobody.replay("x", after="0"), nobody.deliveries("x"),
        nobody.test("x"),
    ):  # fmt: skip
        with pytest.raises(WebhookNotFound, match="there is no webhook 'x'"):
            await asked


async def test_an_update_changes_what_is_given_and_nothing_else(app: App) -> None:
    made = await app.webhooks.create(
        "billing", URL, signing_secret=SIGNED, task="double", headers={"x": "y"}
    )

    changed = await app.webhooks.update("billing", events=ENDED, task=None, with_payload=True)

    assert (changed.events, changed.task, changed.with_payload) == (tuple(ENDED), None, True)
    assert (changed.url, changed.headers, changed.cursor) == (made.url, {"x": "y"}, made.cursor)
    with pytest.raises(InvalidInput):
        await app.webhooks.update("billing", url="nowhere")
    assert await app.webhooks.get("billing") == changed


async def test_a_secret_is_rotated_without_a_message_that_somebody_could_not_verify(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver)
    for secrets in ([SIGNED], [secret("WEBHOOK_OTHER"), SIGNED], [secret("WEBHOOK_OTHER")]):
        await app.webhooks.update("billing", signing_secret=secrets)
        await settle(app)
        await send(app)

    first, both, last = receiver.taken
    for message, known in ((first, SECRET), (both, SECRET), (both, OTHER), (last, OTHER)):
        assert Verifier(known).verify(message.body, message.headers)


async def test_a_paused_webhook_waits_and_then_tells_what_it_missed(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver)

    paused = await app.webhooks.pause("billing")
    await settle(app, 3)
    await send(app)
    assert (paused.state, receiver.asked) == (WebhookState.PAUSED, [])
    resumed = await app.webhooks.resume("billing")
    await send(app)

    assert (resumed.state, len(receiver.taken)) == (WebhookState.ACTIVE, 3)


async def test_a_replay_tells_again_what_happened_since(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    await settle(app, 2)
    middle = await app.storage.now()
    await settle(app, 3)
    await send(app)
    told = receiver.ids

    await app.webhooks.replay("billing", since=middle)
    await send(app)
    assert sorted(receiver.ids[5:]) == sorted(told[2:])
    await app.webhooks.replay("billing", since=middle - timedelta(days=1))
    await send(app)
    assert sorted(receiver.ids[8:]) == sorted(told)
    await app.webhooks.replay("billing", since="1h")
    await send(app)
    assert sorted(receiver.ids[13:]) == sorted(told)


async def test_a_replay_after_a_message_passes_it_by(app: App, receiver: Receiver) -> None:
    """How an operator gets past one that the endpoint will never take."""
    receiver.answer = answering(400)
    await subscribe(app, receiver)
    await settle(app)
    await send(app)
    [poison] = await app.webhooks.deliveries("billing")
    assert poison.cursor is not None
    receiver.answer = answering()
    [later] = await settle(app)

    moved = await app.webhooks.replay("billing", after=poison.cursor)
    await send(app)

    assert (moved.state, moved.cursor) == (WebhookState.ACTIVE, poison.cursor)
    assert [asked.json["data"]["run"]["id"] for asked in receiver.taken[1:]] == [later]


@pytest.mark.parametrize("place", [{}, {"since": "now", "after": "0"}, {"after": "nowhere"}])
async def test_a_replay_needs_one_place_to_begin(app: App, place: dict[str, Any]) -> None:
    await app.webhooks.create("billing", URL, signing_secret=SIGNED)
    if "since" in place:
        place = place | {"since": app.time()}

    with pytest.raises(InvalidInput):
        await app.webhooks.replay("billing", **place)
    with pytest.raises(InvalidInput, match="must not lie ahead"):
        await app.webhooks.replay("billing", since=app.time() + timedelta(hours=1))


async def test_a_replay_overtakes_a_sender_at_work(app: App, receiver: Receiver) -> None:
    """The sender's late word about its old place is refused; everything is told from the new."""
    await subscribe(app, receiver)
    cursor = (await app.webhooks.get("billing")).cursor
    await settle(app, 2)
    replayed = False

    async def replay_first(asked: Any, writer: Any) -> None:
        nonlocal replayed
        if not replayed:
            replayed = True
            await app.webhooks.replay("billing", after=cursor)
        await answering()(asked, writer)

    receiver.answer = replay_first
    await send(app)
    assert (await app.webhooks.get("billing")).posts == 0
    await send(app)

    assert set(receiver.counts.values()) == {2}
    assert (await app.webhooks.get("billing")).posts == 2


async def test_a_change_meanwhile_costs_no_repetition(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    await settle(app, 2)

    async def pause_first(asked: Any, writer: Any) -> None:
        await app.webhooks.pause("billing")
        await answering()(asked, writer)

    receiver.answer = pause_first
    await send(app)
    hook = await app.webhooks.get("billing")
    await app.webhooks.resume("billing")
    await send(app)

    assert (hook.state, hook.posts) == (WebhookState.PAUSED, 2)
    assert set(receiver.counts.values()) == {1}


async def test_a_pause_stops_a_sender_that_has_far_to_go(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    await app.webhooks.update("billing", events=["run.*"])
    await settle(app, 60)
    paused = False

    async def pause_once(asked: Any, writer: Any) -> None:
        nonlocal paused
        if not paused:
            paused = True
            await app.webhooks.pause("billing")
        await answering()(asked, writer)

    receiver.answer = pause_once
    await send(app)
    early = len(receiver.taken)
    await app.webhooks.resume("billing")
    await send(app)

    assert 0 < early < 240
    assert len(receiver.counts) == 240
    assert set(receiver.counts.values()) == {1}


async def test_who_is_deleted_while_being_told_stays_deleted(app: App, receiver: Receiver) -> None:
    await subscribe(app, receiver)
    await settle(app)

    async def delete_first(asked: Any, writer: Any) -> None:
        await app.webhooks.delete("billing")
        await answering()(asked, writer)

    receiver.answer = delete_first
    await send(app)

    assert await app.webhooks.list() == []
    await subscribe(app, receiver)
    assert await app.webhooks.deliveries("billing") == []


async def test_a_trial_posts_at_once_and_tells_what_came_of_it(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver)

    good = await app.webhooks.test("billing")
    receiver.answer = answering(401, {"who": "are you"})
    bad = await app.webhooks.test("billing")

    assert (good.outcome, good.status, good.event) == ("delivered", 200, "webhook.test")
    assert (bad.outcome, bad.status, bad.response) == ("failed", 401, '{"who": "are you"}')
    [first, _] = receiver.taken
    assert Verifier(SECRET).verify(first.body, first.headers)["data"]["webhook"] == "billing"
    assert (await app.webhooks.get("billing")).state is WebhookState.ACTIVE


async def test_there_is_an_end_to_how_many_there_may_be(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.webhooks.operators.MOST_WEBHOOKS", 2)
    for name in ("one", "two"):
        await app.webhooks.create(name, URL, signing_secret=SIGNED)

    with pytest.raises(InvalidInput, match="there are 2 webhooks already"):
        await app.webhooks.create("three", URL, signing_secret=SIGNED)


def test_code_that_cannot_await_has_webhooks_too(storage_url: str) -> None:
    app = App(storage_url, defaults=EAGER)

    with app.sync:
        app.sync.webhooks.create("billing", URL, signing_secret=SIGNED)

        assert [hook.name for hook in app.sync.webhooks.list()] == ["billing"]
