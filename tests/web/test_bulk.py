"""Orders about many runs: counted first, carried out by a run, by whoever is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from perdure import App, Retry
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.engine.operators import bulk, bulk_order
from perdure.engine.operators.bulk import define_bulk
from perdure.engine.operators.bulk_actions import BulkAction
from perdure.engine.operators.bulk_order import Action, Order, Report
from perdure.errors import PerdureError, StorageUnavailable
from waiting import MAX_WAIT_S
from web_kit import dead_letter, shop


async def ordered(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Count, then order: how many there were, and the run that sees to them."""
    counted = (await client.post(path, json=body)).json()
    answer = await client.post(path, json=body | {"expect": counted["matched"]})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/runs/{answer.json()['run_id']}"
    return {"matched": counted["matched"], "run_id": answer.json()["run_id"]}


async def ended(app: App, run_id: str) -> Any:
    return await app.runs.handle(run_id).result(MAX_WAIT_S)


async def test_counting_does_nothing(client: httpx.AsyncClient, shop_app: App) -> None:
    for number in range(3):
        await shop_app.tasks["double"].trigger(number)
    body = {"action": "cancel", "filter": {"task": "double"}}

    answer = await client.post("/v1/runs:bulk", json=body)

    assert (answer.status_code, answer.json()) == (200, {"matched": 3, "run_id": None})
    assert (await shop_app.storage.counts("default"))["numbers", Status.QUEUED] == 3


async def test_what_was_counted_is_cancelled_by_a_run(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    for number in range(25):
        await shop_app.tasks["double"].options(tags={"n": str(number % 2)}).trigger(number)
    body = {"action": "cancel", "filter": {"tag": "n=1"}, "reason": "odd"}

    order = await ordered(client, "/v1/runs:bulk", body)
    report = await ended(shop_app, order["run_id"])
    counts = await shop_app.storage.counts("default")
    shown = (await client.get(f"/v1/runs/{order['run_id']}")).json()

    assert order["matched"] == 12
    assert report == {"seen": 12, "done": 12, "refused": {}}
    assert (counts["numbers", Status.CANCELLED], counts["numbers", Status.QUEUED]) == (12, 13)
    assert (shown["task"], shown["tags"]) == ("perdure.bulk", {"action": "cancel"})
    page = await shop_app.runs.list(status="cancelled")
    assert {run.reason for run in page.runs} == {"odd"}


async def test_more_than_were_expected_are_not_touched(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    for number in range(2):
        await shop_app.tasks["double"].trigger(number)
    body = {"action": "cancel", "filter": {"task": "double"}, "expect": 1}

    answer = await client.post("/v1/runs:bulk", json=body)

    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:perdure:problem:more-than-expected"
    assert (await shop_app.storage.counts("default")) == {("numbers", Status.QUEUED): 2}


async def test_dead_letters_are_replayed_and_discarded_by_filter(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    letters = [await dead_letter(shop_app) for _ in range(4)]
    replayed = {"action": "replay", "filter": {"task": "fragile"}, "reason": "mended"}

    order = await ordered(client, "/v1/dead-letters:bulk", replayed)
    report = await ended(shop_app, order["run_id"])
    closed = {letter: await shop_app.dead_letters.get(letter) for letter in letters}

    assert report == {"seen": 4, "done": 4, "refused": {}}
    assert {it.status for it in closed.values()} == {"replayed"}
    assert len({it.replay_run_id for it in closed.values()}) == 4

    await dead_letter(shop_app)
    again = await ordered(
        client, "/v1/dead-letters:bulk", {"action": "discard", "filter": {"queue": "default"}}
    )
    assert again["matched"] >= 1
    assert (await ended(shop_app, again["run_id"]))["refused"] == {}
    assert await shop_app.dead_letters.list() == []


async def test_what_cannot_be_done_to_some_is_told_and_the_others_are_done(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    await shop_app.dead_letters.discard(await dead_letter(shop_app))
    await dead_letter(shop_app)
    body = {"action": "retry", "filter": {"created_after": "2020-01-01T00:00:00Z"}}

    order = await ordered(client, "/v1/runs:bulk", body)
    report = await ended(shop_app, order["run_id"])

    assert report == {"seen": 2, "done": 1, "refused": {"NotAllowed": 1}}


@pytest.mark.parametrize("action", sorted(bulk_order.ABOUT))
async def test_only_runs_that_an_order_can_be_about_fit(
    client: httpx.AsyncClient, shop_app: App, action: Action
) -> None:
    """One that has died, one that was cancelled, one that waits, and one that is paused."""
    await dead_letter(shop_app)
    await shop_app.runs.cancel(await shop_app.tasks["double"].trigger(1))
    await shop_app.tasks["double"].trigger(1)
    await shop_app.runs.pause(await shop_app.tasks["double"].trigger(1))
    fitting = {"cancel": 2, "pause": 1, "resume": 1, "retry": 1, "rerun": 2}[action]

    order = await ordered(client, "/v1/runs:bulk", {"action": action, "filter": {}})
    report = await ended(shop_app, order["run_id"])

    assert order["matched"] == fitting
    assert report == {"seen": fitting, "done": fitting, "refused": {}}


async def test_old_orders_are_not_given_again_with_everything_else(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    everything = {"action": "cancel", "filter": {}}
    await ended(shop_app, (await ordered(client, "/v1/runs:bulk", everything))["run_id"])
    again = {"action": "rerun", "filter": {}}
    named = {"action": "rerun", "filter": {"task": "perdure.bulk"}}

    assert (await client.post("/v1/runs:bulk", json=again)).json()["matched"] == 0
    assert (await client.post("/v1/runs:bulk", json=named)).json()["matched"] == 1


async def test_who_may_trigger_cannot_give_orders_that_way(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/runs", json={"task": "perdure.bulk", "payload": {"order": {}}})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "task")


async def test_nobody_gives_an_order_as_somebody_else_or_about_another_environment(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    async with shop(shop_app.url, "elsewhere") as other:
        theirs = await other.tasks["double"].trigger(1)
        order = await ordered(client, "/v1/runs:bulk", {"action": "cancel", "filter": {}})
        await ended(shop_app, order["run_id"])
        forged = (await shop_app.runs.get(order["run_id"])).payload
        forged["order"]["words"] = {"environment": "elsewhere"}
        again = await client.post(f"/v1/runs/{order['run_id']}/rerun", json={"payload": forged})
        scheduled = {"task": "perdure.bulk", "cadence": {"every": 5}, "payload": forged}
        planned = await client.put("/v1/schedules/evil", json=scheduled)
        rerun = await shop_app.runs.rerun(order["run_id"], payload=forged)
        await ended(shop_app, rerun.id)

        assert (again.status_code, planned.status_code) == (422, 422)
        assert (await theirs.get()).status is Status.QUEUED


@pytest.mark.parametrize("action", ["rerun", "retry"])
async def test_an_order_that_is_begun_again_makes_no_run_twice(
    shop_app: App, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage goes away in the middle, again and again."""
    for _ in range(20):
        if action == "retry":
            await dead_letter(shop_app)
        else:
            await shop_app.runs.cancel(await shop_app.tasks["double"].trigger(1))
    monkeypatch.setattr(bulk, "TIRELESS", Retry(max_attempts=50, initial=0.01))
    monkeypatch.setattr(bulk, "BATCH_RUNS", 3)
    define_bulk(shop_app)
    real, calls = BulkAction.apply, 0

    async def shaky(self: BulkAction, runs: Sequence[Run]) -> list[PerdureError]:
        nonlocal calls
        calls += 1
        number = calls
        refusals = await real(self, runs)
        if number in (2, 6, 11):
            raise StorageUnavailable("gone after it was done")
        return refusals

    monkeypatch.setattr(BulkAction, "apply", shaky)
    status = "dead_lettered" if action == "retry" else "cancelled"
    order = Order(
        action=Action(action),
        words={"status": status},
        before=shop_app.time(),
        by=Actor(ActorType.OPERATOR, "ada"),
    )
    async with asyncio.timeout(MAX_WAIT_S), shop_app.worker(concurrency=1, queues=["perdure"]):
        report = await (await shop_app.tasks["perdure.bulk"].trigger(order)).result(50)

    counts = await shop_app.storage.counts("default")
    made = counts["default" if action == "retry" else "numbers", Status.QUEUED]
    assert made == 20
    assert report == Report(20, 20, {})
    assert calls >= 7 + 3


async def test_an_order_about_nothing_ends_well_at_once(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    order = await ordered(client, "/v1/runs:bulk", {"action": "cancel", "filter": {"task": "x"}})

    assert await ended(shop_app, order["run_id"]) == {"seen": 0, "done": 0, "refused": {}}
    assert (await shop_app.runs.get(order["run_id"])).counters.attempts == 1


async def test_an_order_is_by_whoever_created_its_run_whatever_its_payload_says(
    shop_app: App,
) -> None:
    define_bulk(shop_app)
    run = await shop_app.tasks["double"].trigger(1)
    forged = Order(
        action=Action.CANCEL,
        words={"task": "double"},
        before=shop_app.time(),
        by=Actor(ActorType.OPERATOR, "mallory"),
    )

    async with shop_app.worker(concurrency=1, queues=["perdure"]):
        await (await shop_app.tasks["perdure.bulk"].trigger(forged)).result(MAX_WAIT_S)

    last = (await shop_app.runs.events(run.id))[-1]
    assert (last.actor.type, last.actor.id) == (ActorType.OPERATOR, shop_app.actor.id)
