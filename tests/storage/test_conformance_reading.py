"""Finding, counting and following runs, on every adapter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import OPERATOR
from perdure.core.decide import decide_cancel, decide_failure, decide_pause
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Policy, Source, SourceType
from perdure.core.seed_terms import parse_statuses, resolve_status
from perdure.errors import InvalidInput
from perdure.storage.contract.runs import RunFilter
from perdure.storage.contract.storage import Storage
from storage_kit import claim, claim_one, create, failure, new_run, now, step, stored, success


async def _ids(storage: Storage, **fields: Any) -> list[str]:
    return [run.id for run in (await storage.find(RunFilter(**fields), limit=100)).runs]


async def test_pages_neither_lose_nor_repeat_while_runs_are_added(storage: Storage) -> None:
    runs = await stored(storage, *(new_run() for _ in range(7)))
    seen: list[str] = []
    cursor = None

    while True:
        page = await storage.find(RunFilter(), limit=3, cursor=cursor)
        seen += [run.id for run in page.runs]
        await create(storage)
        cursor = page.cursor
        if cursor is None:
            break

    assert seen == [run.id for run in reversed(runs)]


async def test_a_cursor_that_is_none_is_refused(storage: Storage) -> None:
    with pytest.raises(InvalidInput, match="not the id of a run"):
        await storage.find(RunFilter(), limit=3, cursor="'; DROP TABLE runs")


async def test_each_filter_finds_its_runs(storage: Storage) -> None:
    parent = await create(storage)
    source = Source(type=SourceType.SCHEDULE, schedule_id="nightly")
    run = await create(
        storage,
        task="special",
        queue="mail",
        batch_id="b1",
        tags={"team": "red"},
        parent_id=parent.id,
        source=source,
    )
    wanted: list[dict[str, Any]] = [
        {"task": "special"},
        {"queue": "mail"},
        {"batch_id": "b1"},
        {"tag": ("team", "red")},
        {"parent_id": parent.id},
        {"schedule_id": "nightly"},
        {"text": "peci"},
        {"text": run.id[10:]},
        {"task": "special", "queue": "mail", "status": resolve_status("pending")},
    ]

    for fields in wanted:
        assert await _ids(storage, **fields) == [run.id], fields
    unwanted: list[dict[str, Any]] = [
        {"task": "none"},
        {"tag": ("team", "blue")},
        {"environment": "test"},
    ]
    for fields in unwanted:
        assert await _ids(storage, **fields) == [], fields


async def test_runs_are_found_by_when_they_were_made(storage: Storage) -> None:
    old = await create(storage, at=now() - timedelta(days=2))
    new = await create(storage)
    yesterday = now() - timedelta(days=1)

    assert await _ids(storage, created_before=yesterday) == [old.id]
    assert await _ids(storage, created_after=yesterday) == [new.id]


async def test_seed_words_find_runs_by_status_and_failure(storage: Storage) -> None:
    await stored(storage, *(new_run(policy=Policy(max_attempts=1)) for _ in range(3)))
    runs = (await claim(storage)).runs
    late = make_failure(FailureKind.TIMEOUT, type="Timeout", message="too slow")
    timed_out, broken, done = runs
    assert timed_out.lease is not None
    await stored(
        storage,
        step(timed_out, decide_failure(timed_out, timed_out.lease.token, now(), late)),
        failure(broken),
        success(done),
    )

    assert await _ids(storage, status=resolve_status("timed_out")) == [timed_out.id]
    assert set(await _ids(storage, status=resolve_status("failed"))) == {timed_out.id, broken.id}
    assert await _ids(storage, status=resolve_status("completed")) == [done.id]
    both = parse_statuses(["failed", "succeeded"])
    assert len(await _ids(storage, status=both)) == 3
    assert await _ids(storage, finished_after=now() + timedelta(days=1)) == []
    assert len(await _ids(storage, finished_after=now() - timedelta(days=1))) == 3
    assert await _ids(storage, finished_before=now() - timedelta(days=1)) == []
    assert await _ids(storage, failure_kind="timeout") == [timed_out.id]
    assert await _ids(storage, fingerprint=late.fingerprint) == [timed_out.id]
    assert await _ids(storage, text="too slow") == [timed_out.id]


async def test_counts_are_by_queue_and_status(storage: Storage) -> None:
    await stored(storage, new_run(queue="a"), new_run(queue="a"), new_run(queue="b"))
    await claim_one(storage, queues=("b",))

    assert await storage.counts("default") == {
        ("a", Status.QUEUED): 2,
        ("b", Status.RUNNING): 1,
    }


async def test_the_change_feed_tells_every_commit_once_and_resumes(storage: Storage) -> None:
    run = await create(storage)
    [run] = await stored(storage, step(run, decide_pause(run, OPERATOR, now())))
    other = await create(storage)
    await stored(storage, step(run, decide_cancel(run, OPERATOR, now())))
    seen = []
    cursor = None

    while changes := await storage.changes(cursor, limit=2):
        seen += changes
        cursor = changes[-1].cursor

    told = [(change.run_id, event.sequence) for change in seen for event in change.events]
    assert told == [(run.id, 1), (run.id, 2), (other.id, 1), (run.id, 3)]
    assert seen[-1].events[0].type is EventType.CANCELLED
    assert seen[-1].events[0].actor == OPERATOR
    assert seen[-1].events[0].occurred_at == seen[-1].events[0].event.occurred_at


async def test_getting_many_finds_those_that_exist(storage: Storage) -> None:
    runs = await stored(storage, new_run(), new_run())
    missing = new_run().run.id

    assert await storage.get([runs[0].id, missing, runs[1].id]) == {r.id: r for r in runs}
    assert await storage.get([]) == {}
