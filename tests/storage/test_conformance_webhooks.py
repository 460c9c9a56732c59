"""Webhooks and places in the change feed, on every adapter."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from perdure.core.lifecycle import Status
from perdure.core.run import Policy
from perdure.storage.oversight import feed_order
from perdure.storage.protocol import Storage
from perdure.storage.webhook_protocol import StoredDelivery, StoredWebhook
from storage_kit import claim_one, create, failure, now, success

HOOK = StoredWebhook(id="hook_1", environment="default", name="billing", version=1, body='{"n":1}')
LATER = timedelta(hours=1)


async def ended(storage: Storage) -> str:
    await create(storage)
    run = await claim_one(storage)
    await storage.commit([success(run)])
    return run.id


async def test_a_webhook_is_kept_as_it_was_handed_in(storage: Storage) -> None:
    elsewhere = replace(HOOK, id="hook_2", environment="elsewhere")

    assert await storage.put_webhook(HOOK)
    assert await storage.put_webhook(elsewhere)

    assert await storage.webhooks("default") == [HOOK]
    assert await storage.webhooks(None) == [HOOK, elsewhere]


async def test_of_two_changes_to_one_version_the_second_is_refused(storage: Storage) -> None:
    await storage.put_webhook(HOOK)
    moved = replace(HOOK, version=2, body='{"n":2}')
    posts = [StoredDelivery(1, "{}")]

    assert await storage.put_webhook(moved, posts)
    assert not await storage.put_webhook(replace(moved, body='{"n":3}'), posts)

    assert await storage.webhooks("default") == [moved]
    assert await storage.deliveries(HOOK.id, limit=10) == posts


async def test_of_many_writers_at_once_one_gets_through(storage: Storage) -> None:
    await storage.put_webhook(HOOK)
    changes = [replace(HOOK, version=2, body=f'{{"n":{n}}}') for n in range(8)]

    stored = await asyncio.gather(*(storage.put_webhook(change) for change in changes))

    assert sorted(stored) == [False] * 7 + [True]
    assert await storage.webhooks("default") == [changes[stored.index(True)]]


async def test_a_name_belongs_to_whoever_took_it_first(storage: Storage) -> None:
    assert await storage.put_webhook(HOOK)

    assert await storage.put_webhook(HOOK)  # its answer was lost
    assert not await storage.put_webhook(replace(HOOK, id="hook_2"))


async def test_what_was_deleted_does_not_come_back_by_a_late_write(storage: Storage) -> None:
    await storage.put_webhook(HOOK)
    late = replace(HOOK, version=2)

    assert await storage.delete_webhook(HOOK.id)
    assert not await storage.delete_webhook(HOOK.id)
    assert not await storage.put_webhook(late, [StoredDelivery(1, "{}")])
    assert await storage.put_webhook(replace(HOOK, id="hook_2"))

    assert not await storage.put_webhook(late)
    assert await storage.deliveries(HOOK.id, limit=10) == []


async def test_only_the_latest_posts_are_kept_and_they_are_told_newest_first(
    storage: Storage,
) -> None:
    await storage.put_webhook(HOOK)
    posts = [StoredDelivery(n, f'{{"n":{n}}}') for n in range(1, 8)]

    await storage.put_webhook(replace(HOOK, version=2), posts[:4], keep=5)
    await storage.put_webhook(replace(HOOK, version=3), posts[4:], keep=5)

    assert await storage.deliveries(HOOK.id, limit=10) == posts[:1:-1]
    assert await storage.deliveries(HOOK.id, limit=2, before=6) == [posts[4], posts[3]]


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
