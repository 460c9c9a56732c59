"""Counting, dead letters page by page, and the audit trail, on every adapter."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from builders import OPERATOR
from perdure.core.audit_chain import AuditEntry, SealedEntry, flaws, seal
from perdure.core.run.effects import DeadLetterStatus
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import OnExhausted, Policy
from perdure.errors import InvalidInput
from perdure.storage.contract.inspection import LetterFilter, feed_order
from perdure.storage.contract.runs import Record, RunFilter
from perdure.storage.contract.storage import Storage
from raw import dump
from storage_kit import claim_one, create, failure, letters, new_run, now, stored, success

ONE_TRY = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)


def entry(target: str) -> AuditEntry:
    return AuditEntry(at=now(), actor=OPERATOR, action="cancel", target=target, outcome="done")


async def dead_letter(storage: Storage, **fields: str) -> str:
    run = await create(storage, policy=ONE_TRY, **fields)
    claimed = await claim_one(storage, tasks=(run.task,))
    await storage.commit([failure(claimed)])
    return run.id


async def test_runs_are_counted_by_any_filter_and_only_so_far(storage: Storage) -> None:
    await stored(storage, *(new_run(queue="mail") for _ in range(5)), new_run(queue="other"))

    assert await storage.count(RunFilter(), most=100) == 6
    assert await storage.count(RunFilter(queue="mail"), most=100) == 5
    assert await storage.count(RunFilter(queue="mail"), most=3) == 3
    assert await storage.count(RunFilter(environment="elsewhere"), most=3) == 0


async def test_the_ids_of_runs_are_found_by_any_filter_page_by_page(storage: Storage) -> None:
    await stored(storage, *(new_run(queue="mail") for _ in range(3)), new_run(queue="other"))
    found = await storage.find(RunFilter(queue="mail"), limit=10)
    expected = [run.id for run in found.runs]

    first = await storage.find_ids(RunFilter(queue="mail"), limit=2)
    rest = await storage.find_ids(RunFilter(queue="mail"), limit=2, cursor=first[-1])

    assert (first, rest) == (expected[:2], expected[2:])
    assert await storage.find_ids(RunFilter(environment="elsewhere"), limit=2) == []
    with pytest.raises(InvalidInput, match="not the id of a run"):
        await storage.find_ids(RunFilter(), limit=2, cursor="x' OR 1=1")


async def test_what_ended_is_counted_step_by_step(storage: Storage) -> None:
    began = await storage.now()
    for _ in range(3):
        await create(storage)
        await storage.commit([success(await claim_one(storage))])
    await create(storage)

    ended = await storage.throughput("default", began - timedelta(hours=1), timedelta(minutes=60))

    assert {it.status for it in ended} == {Status.SUCCEEDED}
    assert sum(it.count for it in ended) == 3
    assert all(it.since - began in (-timedelta(hours=1), timedelta(0)) for it in ended)
    assert await storage.throughput("elsewhere", began, timedelta(minutes=1)) == []


async def test_what_ended_is_counted_queue_by_queue(storage: Storage) -> None:
    began = await storage.now()
    for queue in ("mail", "mail", "other"):
        await create(storage, queue=queue)
        await storage.commit([success(await claim_one(storage))])
    await create(storage, queue="idle")

    assert await storage.pace("default", began - timedelta(minutes=1)) == {"mail": 2, "other": 1}
    assert await storage.pace("default", began + timedelta(hours=1)) == {}


async def test_who_holds_how_many_is_told(storage: Storage) -> None:
    for worker_id in ("worker_1", "worker_1", "worker_2"):
        await create(storage)
        await claim_one(storage, worker_id=worker_id)
    await create(storage)

    assert await storage.held("default") == {"worker_1": 2, "worker_2": 1}


async def test_what_ended_last_is_named_first(storage: Storage) -> None:
    began = await storage.now() - timedelta(minutes=1)
    ended = []
    for _ in range(3):
        run = await create(storage)
        await storage.commit([success(await claim_one(storage))])
        ended.append(run.id)
    failed = await dead_letter(storage)

    good = await storage.latest_ended("default", [Status.SUCCEEDED], began, limit=2)
    bad = await storage.latest_ended(
        "default", [Status.DEAD_LETTERED, Status.FAILED], began, limit=9
    )
    later = await storage.latest_ended("default", list(Status), began + timedelta(hours=1), limit=9)

    assert good == [ended[2], ended[1]]
    assert (bad, later) == ([failed], [])


async def test_what_would_be_pruned_is_counted_and_only_so_far(storage: Storage) -> None:
    for _ in range(3):
        await create(storage)
        await storage.commit([success(await claim_one(storage))])
    await create(storage)
    late = await storage.now() + timedelta(minutes=1)

    assert await storage.prunable(Status.SUCCEEDED, late, most=100) == 3
    assert await storage.prunable(Status.SUCCEEDED, late, most=2) == 2
    assert await storage.prunable(Status.FAILED, late, most=100) == 0
    assert await storage.prunable(Status.SUCCEEDED, late - timedelta(hours=1), most=100) == 0


async def test_runs_that_have_ended_are_forgotten_without_a_trace(
    storage: Storage, storage_url: str
) -> None:
    kept = await create(storage)
    before = dump(storage_url)
    ended = await create(storage, tags={"a": "b"}, batch_id="batch_1", queue="bench")
    await storage.commit([success(await claim_one(storage, queues=("bench",)))])

    count = await storage.forget_runs([ended.id, kept.id, "run_" + 32 * "0", "nonsense"])

    assert count == 1
    assert dump(storage_url) == before
    assert await storage.pruned_to() is None


async def test_nothing_before_the_latest_change_follows_it(storage: Storage) -> None:
    await create(storage)
    latest = await storage.latest_change()
    run = await create(storage)

    seen = await storage.changes(latest, limit=10)

    assert [change.run_id for change in seen] == [run.id]


async def test_cursors_of_the_feed_compare_as_their_changes_follow(storage: Storage) -> None:
    for _ in range(12):
        await create(storage)

    cursors = [change.cursor for change in await storage.changes(None, limit=100)]

    assert sorted(cursors, key=feed_order) == cursors
    assert feed_order(cursors[-1]) < feed_order(await storage.latest_change()) or (
        cursors[-1] == await storage.latest_change()
    )


async def test_dead_letters_are_paged_without_loss_or_repetition(storage: Storage) -> None:
    expected = [await dead_letter(storage) for _ in range(5)]
    seen: list[str] = []
    cursor = None

    while True:
        page = await storage.find_dead_letters(LetterFilter(), limit=2, cursor=cursor)
        seen += [letter.run_id for letter in page.letters]
        await dead_letter(storage)
        cursor = page.cursor
        if cursor is None:
            break

    assert seen == expected[::-1]


async def test_the_runs_of_dead_letters_are_found_page_by_page_as_of_a_time(
    storage: Storage,
) -> None:
    expected = [await dead_letter(storage) for _ in range(3)][::-1]
    latest = max(letter.opened_at for letter in await letters(storage))
    mail = LetterFilter(queue="mail")

    first = await storage.find_letter_ids(LetterFilter(), latest, limit=2)
    rest = await storage.find_letter_ids(LetterFilter(), latest, limit=2, cursor=first[-1])

    assert (first, rest) == (expected[:2], expected[2:])
    assert await storage.find_letter_ids(LetterFilter(), latest - timedelta(1), limit=2) == []
    assert await storage.find_letter_ids(mail, latest, limit=2) == []


async def test_dead_letters_are_counted_by_any_filter_and_only_so_far(storage: Storage) -> None:
    for _ in range(3):
        await dead_letter(storage)
    await dead_letter(storage, task="special", queue="mail")

    assert await storage.count_letters(LetterFilter(), most=100) == 4
    assert await storage.count_letters(LetterFilter(), most=3) == 3
    assert await storage.count_letters(LetterFilter(queue="mail"), most=3) == 1
    assert await storage.count_letters(LetterFilter(environment="elsewhere"), most=3) == 0


async def test_dead_letters_are_found_by_what_is_known_of_them(storage: Storage) -> None:
    plain = await dead_letter(storage)
    special = await dead_letter(storage, task="special", queue="mail")
    [letter] = await letters(storage, task="special")

    assert letter.run_id == special
    assert [it.run_id for it in await letters(storage, queue="mail")] == [special]
    assert [it.run_id for it in await letters(storage, fingerprint=letter.fingerprint)] == [
        special,
        plain,
    ]
    assert await letters(storage, failure_kind="timeout") == []
    assert await letters(storage, status=DeadLetterStatus.DISCARDED) == []


async def test_a_cursor_of_dead_letters_that_is_none_is_refused(storage: Storage) -> None:
    with pytest.raises(InvalidInput, match="not the id of a run"):
        await storage.find_dead_letters(LetterFilter(), limit=2, cursor="x' OR 1=1")


async def test_audit_entries_are_kept_as_they_were_sealed(storage: Storage) -> None:
    sealed = seal("default", [entry("a"), entry("b"), entry("c")], None)

    assert await storage.audit_head("default") is None
    assert await storage.append_audit(sealed)

    assert await storage.audit_entries("default") == sealed
    assert await storage.audit_entries("default", after=1, limit=1) == sealed[1:2]
    assert await storage.audit_head("default") == sealed[-1]
    assert await storage.audit_head("elsewhere") is None


async def test_of_two_entries_for_one_place_the_second_is_refused(storage: Storage) -> None:
    assert await storage.append_audit(seal("default", [entry("a")], None))

    assert not await storage.append_audit(seal("default", [entry("b"), entry("c")], None))
    assert len(await storage.audit_entries("default")) == 1


async def test_entries_whose_answer_was_lost_are_stored_once(storage: Storage) -> None:
    sealed = seal("default", [entry("a"), entry("b")], None)

    assert await storage.append_audit(sealed)
    assert await storage.append_audit(sealed)
    assert await storage.audit_entries("default") == sealed


async def test_however_many_write_at_once_the_trail_is_whole(storage: Storage) -> None:
    async def write(name: str) -> None:
        while True:
            head: SealedEntry | None = await storage.audit_head("default")
            if await storage.append_audit(seal("default", [entry(name), entry(name)], head)):
                return

    await asyncio.gather(*(write(f"writer {number}") for number in range(8)))

    found = await storage.audit_entries("default")
    assert len(found) == 16
    assert list(flaws(found)) == []


async def test_a_record_is_read_by_its_name_without_the_others(storage: Storage) -> None:
    named = [
        Record(environment=environment, kind=kind, name="a", version=1, body=f'"{environment}"')
        for environment, kind in (("default", "worker"), ("default", "task"), ("other", "worker"))
    ]
    second = msgspec.structs.replace(named[0], name="b")
    await storage.put([*named, second])

    found = await storage.records("default", "worker", "a")
    everything = await storage.records("default", "worker")

    assert [(it.name, it.version, it.body) for it in found] == [("a", 1, '"default"')]
    assert found[0].seen_at is not None
    assert [it.name for it in everything] == ["a", "b"]
    assert await storage.records("default", "worker", "c") == []
