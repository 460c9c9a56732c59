"""Long histories take little space, and say the same as before."""

import asyncio
from collections.abc import Sequence

import pytest

import raw
from perdure.core.decide import decide_release
from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import replay
from perdure.core.run.run import Run
from perdure.errors import UnreadableHistory
from perdure.storage.contract.storage import Storage
from storage_kit import claim_one, create, now, reload, step, stored, success, token_of

POLLS = 200
MAX_BYTES_OF_A_POLL = 300
KEPT_ROWS = 90
"""At most so many rows of a history stay as they were committed."""


async def polling_run(storage: Storage, polls: int = POLLS) -> Run:
    """A run that was claimed, started and released so many times, and has then succeeded."""
    run = await create(storage)
    for _ in range(polls):
        run = await claim_one(storage)
        events = decide_release(run, token_of(run), now(), resume_at=run.updated_at)
        [run] = await stored(storage, step(run, events))
    [run] = await stored(storage, success(await claim_one(storage)))
    return run


async def fold_all(storage: Storage) -> None:
    while await storage.fold_histories(10):
        pass


def stored_rows(url: str) -> tuple[int, int]:
    """How many rows all histories have, and how many bytes of events."""
    [[found]] = raw.execute(url, "SELECT count(*), sum(length(events)) FROM perdure_history")
    return found[0], int(found[1])


async def read_feed(storage: Storage, cursor: str | None, page: int) -> list[tuple[str, int]]:
    """The place of each event in the feed, in order, from `cursor` on, and its sequence."""
    told: list[tuple[str, int]] = []
    while changes := await storage.changes(cursor, limit=page):
        cursor = changes[-1].cursor
        told += [(change.cursor, it.sequence) for change in changes for it in change.events]
    return told


def sequences(events: Sequence[RecordedEvent]) -> list[int]:
    return [recorded.sequence for recorded in events]


async def test_repeated_polls_cost_few_rows_and_bytes(storage: Storage, storage_url: str) -> None:
    await polling_run(storage, 400)
    before = stored_rows(storage_url)

    await fold_all(storage)

    count, size = stored_rows(storage_url)
    assert before[0] > 800
    assert count <= 400 // 32 + KEPT_ROWS
    assert size <= 400 * MAX_BYTES_OF_A_POLL


async def test_events_of_a_folded_history_are_what_they_were(storage: Storage) -> None:
    run = await polling_run(storage)
    before = await storage.events(run.id)

    await fold_all(storage)

    assert await storage.events(run.id) == before
    assert sequences(before) == list(range(1, run.sequence + 1))
    assert replay([recorded.event for recorded in before]) == await reload(storage, run)


async def test_events_after_a_sequence_may_begin_in_a_folded_row(storage: Storage) -> None:
    run = await polling_run(storage)
    await fold_all(storage)

    for after in (0, 1, 2, 3, 50, 96, 97, 98, run.sequence - 1, run.sequence):
        following = await storage.events(run.id, after=after)
        assert sequences(following) == list(range(after + 1, run.sequence + 1))


async def test_a_reader_of_the_feed_misses_and_repeats_nothing_when_rows_are_folded(
    storage: Storage,
) -> None:
    run = await polling_run(storage)
    before = await read_feed(storage, None, 50)

    await fold_all(storage)

    assert [sequence for _, sequence in before] == list(range(1, run.sequence + 1))
    for index in (0, 1, 2, 17, 64, 65, 100, 200, len(before) - 2):
        position, _ = before[index]
        rest = [sequence for at, sequence in before[index:] if at != position]
        assert [sequence for _, sequence in await read_feed(storage, position, 7)] == rest


async def test_a_short_history_stays_as_it_was_committed(
    storage: Storage, storage_url: str
) -> None:
    await polling_run(storage, 30)
    before = raw.dump(storage_url)["history"]

    assert await storage.fold_histories(10) == 0
    assert raw.dump(storage_url)["history"] == before


async def test_a_run_goes_on_after_its_history_was_folded(storage: Storage) -> None:
    run = await create(storage)
    for polls in range(POLLS):
        run = await claim_one(storage)
        events = decide_release(run, token_of(run), now(), resume_at=run.updated_at)
        [run] = await stored(storage, step(run, events))
        if polls % 40 == 0:
            await fold_all(storage)

    told = await storage.events(run.id)
    assert sequences(told) == list(range(1, run.sequence + 1))
    assert replay([recorded.event for recorded in told]) == await reload(storage, run)


async def test_two_may_fold_at_once(storage: Storage) -> None:
    run = await polling_run(storage)
    before = await storage.events(run.id)

    await asyncio.gather(*(fold_all(storage) for _ in range(4)))

    assert await storage.events(run.id) == before


async def test_a_commit_whose_answer_was_lost_is_recognised_after_folding(
    storage: Storage,
) -> None:
    await polling_run(storage, 0)  # another run in the same database
    run = await create(storage)
    for _ in range(POLLS):
        run = await claim_one(storage)
        last = step(run, decide_release(run, token_of(run), now(), resume_at=run.updated_at))
        [run] = await stored(storage, last)
    await fold_all(storage)

    assert await storage.was_stored(last)
    await stored(storage, last)


async def test_a_folded_history_goes_with_its_run(storage: Storage, storage_url: str) -> None:
    run = await polling_run(storage)
    await fold_all(storage)

    assert run.finished_at is not None
    assert await storage.prune(Status.SUCCEEDED, run.finished_at, 10) == 1
    assert raw.execute(storage_url, "SELECT * FROM perdure_history") == [[]]


async def test_a_damaged_folded_row_is_told_as_such(storage: Storage, storage_url: str) -> None:
    run = await polling_run(storage)
    await fold_all(storage)
    raw.execute(
        storage_url,
        'UPDATE perdure_history SET events = replace(events, \'"folded":"\', \'"folded":"x\')',
    )

    with pytest.raises(UnreadableHistory, match="folded"):
        await storage.events(run.id)
