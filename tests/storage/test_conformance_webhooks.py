"""Webhooks and places in the change feed, on every adapter."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Policy
from perdure.errors import InvalidInput
from perdure.storage.contract.inspection import feed_order
from perdure.storage.contract.storage import Storage
from perdure.storage.contract.webhooks import StoredDelivery
from storage_kit import claim_one, create, failure, now, success
from webhook_rows import DELIVERED, webhook_body, webhook_row

LATER = timedelta(hours=1)


async def ended(storage: Storage) -> str:
    await create(storage)
    run = await claim_one(storage)
    await storage.commit([success(run)])
    return run.id


async def test_a_webhook_is_kept_as_it_was_handed_in(storage: Storage) -> None:
    hook = await webhook_row(storage)
    elsewhere = replace(hook, id="hook_2", environment="elsewhere")

    assert await storage.put_webhook(hook)
    assert await storage.put_webhook(elsewhere)

    assert await storage.webhooks("default") == [hook]
    assert await storage.webhooks(None) == [hook, elsewhere]


async def test_of_two_changes_to_one_version_the_second_is_refused(storage: Storage) -> None:
    hook = await webhook_row(storage)
    await storage.put_webhook(hook)
    moved = replace(hook, version=2, body=webhook_body(hook, posts=2))
    posts = [StoredDelivery(1, DELIVERED)]

    assert await storage.put_webhook(moved, posts)
    assert not await storage.put_webhook(replace(moved, body=webhook_body(hook, posts=3)), posts)

    assert await storage.webhooks("default") == [moved]
    assert await storage.deliveries(hook.id, limit=10) == posts


async def test_of_many_writers_at_once_one_gets_through(storage: Storage) -> None:
    hook = await webhook_row(storage)
    await storage.put_webhook(hook)
    changes = [replace(hook, version=2, body=webhook_body(hook, posts=n)) for n in range(8)]

    stored = await asyncio.gather(*(storage.put_webhook(change) for change in changes))

    assert sorted(stored) == [False] * 7 + [True]
    assert await storage.webhooks("default") == [changes[stored.index(True)]]


async def test_a_name_belongs_to_whoever_took_it_first(storage: Storage) -> None:
    hook = await webhook_row(storage)
    assert await storage.put_webhook(hook)

    assert await storage.put_webhook(hook)  # its answer was lost
    assert not await storage.put_webhook(replace(hook, id="hook_2"))


async def test_what_was_deleted_does_not_come_back_by_a_late_write(storage: Storage) -> None:
    hook = await webhook_row(storage)
    await storage.put_webhook(hook)
    late = replace(hook, version=2)

    assert await storage.delete_webhook(hook.id)
    assert not await storage.delete_webhook(hook.id)
    assert not await storage.put_webhook(late, [StoredDelivery(1, DELIVERED)])
    assert await storage.put_webhook(replace(hook, id="hook_2"))

    assert not await storage.put_webhook(late)
    assert await storage.deliveries(hook.id, limit=10) == []


async def test_only_the_latest_posts_are_kept_and_they_are_told_newest_first(
    storage: Storage,
) -> None:
    hook = await webhook_row(storage)
    await storage.put_webhook(hook)
    posts = [StoredDelivery(n, DELIVERED) for n in range(1, 8)]

    await storage.put_webhook(replace(hook, version=2), posts[:4], keep=5)
    await storage.put_webhook(replace(hook, version=3), posts[4:], keep=5)

    assert await storage.deliveries(hook.id, limit=10) == posts[:1:-1]
    assert await storage.deliveries(hook.id, limit=2, before=6) == [posts[4], posts[3]]


async def test_pruning_leaves_word_of_how_far_it_went(storage: Storage) -> None:
    first = await ended(storage)
    assert await storage.pruned_to() is None
    last = (await storage.changes(None, limit=10))[-1]
    kept = await create(storage)

    assert await storage.prune(Status.SUCCEEDED, now() + LATER, 10) == 1

    pruned = await storage.pruned_to()
    assert (last.run_id, last.cursor) == (first, pruned)
    [left] = await storage.changes(None, limit=10)
    assert left.run_id == kept.id
    assert feed_order(left.cursor) > feed_order(pruned or "")


async def test_pruning_older_runs_later_does_not_take_it_back(storage: Storage) -> None:
    await create(storage, policy=Policy(max_attempts=1))
    await storage.commit([failure(await claim_one(storage))])
    await ended(storage)
    await storage.prune(Status.SUCCEEDED, now() + LATER, 10)
    before = await storage.pruned_to()

    assert await storage.prune(Status.FAILED, now() + LATER, 10) == 1

    assert await storage.pruned_to() == before


async def test_nothing_pruned_lies_behind_the_latest_change(storage: Storage) -> None:
    await ended(storage)
    await storage.prune(Status.SUCCEEDED, now() + LATER, 10)

    latest, pruned = await storage.latest_change(), await storage.pruned_to()

    assert feed_order(latest) >= feed_order(pruned or "")
    assert await storage.changes(latest, limit=1) == []


@pytest.mark.parametrize("index", [0, 3, 9])
async def test_a_place_in_the_feed_is_found_by_its_time(storage: Storage, index: int) -> None:
    runs = [await create(storage) for _ in range(10)]
    changes = await storage.changes(None, limit=100)
    instant = changes[index].events[0].occurred_at

    cursor = await storage.cursor_before(instant)

    following = await storage.changes(cursor, limit=100)
    assert [it.run_id for it in following] == [run.id for run in runs[index:]]


async def test_beyond_the_ends_of_the_feed_a_place_is_found_too(storage: Storage) -> None:
    assert await storage.changes(await storage.cursor_before(now()), limit=1) == []
    run = await create(storage)

    early, late = now() - LATER, now() + LATER

    assert await storage.changes(await storage.cursor_before(late), limit=1) == []
    [found] = await storage.changes(await storage.cursor_before(early), limit=9)
    assert found.run_id == run.id


NAIVE = "2026-01-01T00:00:00"
BAD_PROGRESS: list[dict[str, Any]] = [
    {"not_before": NAIVE},
    {"delivered_at": NAIVE},
    {"failing_since": NAIVE},
    {"next_try_at": NAIVE},
    {"next_try_at": "0001-01-01T00:00:00+14:00"},
    {"next_try_at": "9999-12-31T23:59:59Z"},
    {"hold": {"token": "t", "until": NAIVE}},
    {"disabled": {"at": NAIVE, "why": ""}},
    {"gap": {"at": NAIVE, "after": "0", "until": "0"}},
    {"gap": {"at": f"{NAIVE}Z", "after": "x", "until": "0"}},
    {"cursor": "not of a feed"},
    {"cursor": "1" * 1000},
    {"posts": -1},
    {"failures": 2**60},
    {"done": ["x"] * 10_001},
    {"done": ["x" * 1000]},
]


@pytest.mark.parametrize("progress", BAD_PROGRESS, ids=lambda it: str(it)[:40])
async def test_progress_that_a_sender_could_not_process_is_refused(
    storage: Storage, progress: dict[str, Any]
) -> None:
    row = await webhook_row(storage)

    with pytest.raises(InvalidInput):
        await storage.put_webhook(replace(row, body=webhook_body(row, **progress)))

    assert await storage.webhooks("default") == []


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", "{}", '{"progress": {}}', "[" * 100_000, '"\\ud800"'],
    ids=lambda it: ascii(it)[:20],
)
async def test_a_body_that_no_sender_could_read_is_refused(storage: Storage, body: str) -> None:
    row = await webhook_row(storage)
    await storage.put_webhook(row)

    with pytest.raises(InvalidInput):
        await storage.put_webhook(replace(row, version=2, body=body))

    assert await storage.webhooks("default") == [row]


async def test_a_body_that_is_too_large_is_refused(storage: Storage) -> None:
    row = await webhook_row(storage)
    body = json.dumps(json.loads(row.body) | {"padding": "x" * (2 * 1024 * 1024)})

    with pytest.raises(InvalidInput, match="at most 2097152 bytes"):
        await storage.put_webhook(replace(row, body=body))


@pytest.mark.parametrize(
    "posted",
    [
        StoredDelivery(1, "{}"),
        StoredDelivery(1, f'{{"at": "{NAIVE}"}}'),
        StoredDelivery(0, DELIVERED),
        StoredDelivery(1, json.dumps({"at": f"{NAIVE}Z", "error": "x" * 300_000})),
    ],
    ids=range(4),
)
async def test_a_delivery_that_could_not_be_read_again_is_refused(
    storage: Storage, posted: StoredDelivery
) -> None:
    row = await webhook_row(storage)
    await storage.put_webhook(row)

    with pytest.raises(InvalidInput):
        await storage.put_webhook(replace(row, version=2), [posted])

    assert await storage.webhooks("default") == [row]
