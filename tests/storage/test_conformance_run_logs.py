"""Runs' logs, progress, and what queues have to do: kept, bounded, read back, pruned."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import TASK
from perdure.core.limits.admission import LimitScope
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.errors import InvalidInput
from perdure.storage.contract.logs import LogBatch, LogLine, Progress
from perdure.storage.contract.runs import Backlog
from perdure.storage.contract.storage import Storage
from storage_kit import claim, claim_one, create, new_run, now, set_limit, stored, success

OTHER_RUN = "run_" + "0" * 31 + "7"


def line(number: int, attempt: int = 1, **fields: Any) -> LogLine:
    said: dict[str, Any] = {"message": f"line {number}", "level": 20, "logger": "perdure.task.t"}
    return LogLine(attempt=attempt, number=number, at=now(), **(said | fields))


def batch(run: Run, *lines: LogLine, attempt: int = 1, **fields: Any) -> LogBatch:
    return LogBatch(run_id=run.id, attempt=attempt, lines=lines, **fields)


async def numbers(storage: Storage, run: Run, **options: Any) -> list[tuple[int, int]]:
    return [(one.attempt, one.number) for one in await storage.logs(run.id, **options)]


async def test_lines_read_back_exactly_as_they_were_said(storage: Storage) -> None:
    run, other = await create(storage), await create(storage)
    said = line(1, message="naïve \N{SNOWMAN} 'quoted'\n", level=30, fields={"nul": "\0", "n": [1]})

    await storage.write_logs([batch(run, said), batch(other, line(1))])

    assert await storage.logs(run.id) == [said]


async def test_lines_come_attempt_by_attempt_and_page_by_page(storage: Storage) -> None:
    run = await create(storage)
    await storage.write_logs([batch(run, line(1, 2), attempt=2)])
    await storage.write_logs([batch(run, *(line(n) for n in range(1, 13)))])

    page = await storage.logs(run.id, limit=11)
    rest = await storage.logs(run.id, after=page[-1].cursor, limit=11)

    assert [one.number for one in page] == list(range(1, 12))
    assert [one.cursor for one in rest] == ["1.12", "2.1"]
    assert await numbers(storage, run, after="2.1") == []


async def test_a_line_written_twice_is_kept_once(storage: Storage) -> None:
    run = await create(storage)

    await storage.write_logs([batch(run, line(1, message="first"))])
    await storage.write_logs([batch(run, line(1, message="again"), line(2))])

    assert [one.message for one in await storage.logs(run.id)] == ["first", "line 2"]


async def test_older_lines_go_when_asked_for_and_only_those_of_the_attempt(
    storage: Storage,
) -> None:
    run = await create(storage)
    await storage.write_logs([batch(run, line(1), line(2), line(3))])
    await storage.write_logs([batch(run, line(1, 2), attempt=2)])

    await storage.write_logs([batch(run, line(4), keep_from=3)])

    assert await numbers(storage, run) == [(1, 3), (1, 4), (2, 1)]


async def test_lines_of_no_run_are_nobodys(storage: Storage) -> None:
    gone = LogBatch(run_id=OTHER_RUN, attempt=1, lines=(line(1),), progress=progress(0.5))
    odd = LogBatch(run_id="nonsense", attempt=1, lines=(line(1),))

    await storage.write_logs([gone, odd])
    await storage.write_logs([])

    assert await storage.logs(OTHER_RUN) == await storage.logs("nonsense") == []
    assert await storage.progress([OTHER_RUN, "nonsense"]) == {}


def progress(fraction: float, attempt: int = 1, message: str = "") -> Progress:
    return Progress(attempt=attempt, at=now(), fraction=fraction, message=message)


async def test_the_latest_word_on_progress_counts_but_never_an_older_attempts(
    storage: Storage,
) -> None:
    run, silent = await create(storage), await create(storage)
    await storage.write_logs([batch(run, progress=progress(0.9))])
    latest = progress(0.2, attempt=2, message="again from the start")
    await storage.write_logs([batch(run, attempt=2, progress=progress(0.1, attempt=2))])
    await storage.write_logs([batch(run, attempt=2, progress=latest)])

    await storage.write_logs([batch(run, progress=progress(1.0))])

    assert await storage.progress([run.id, silent.id]) == {run.id: latest}


async def test_what_a_run_said_is_pruned_with_it(storage: Storage) -> None:
    await stored(storage, new_run(), new_run())
    ended, other = await claim_one(storage), await claim_one(storage)
    await stored(storage, success(ended))
    for run in (ended, other):
        await storage.write_logs([batch(run, line(1), progress=progress(0.5))])

    assert await storage.prune(Status.SUCCEEDED, now() + timedelta(days=1), 10) == 1

    assert await storage.logs(ended.id) == []
    assert await numbers(storage, other) == [(1, 1)]
    assert set(await storage.progress([ended.id, other.id])) == {other.id}


@pytest.mark.parametrize("cursor", ["", "1", "a.b", "1.2.3", "-1.2", "1." + "9" * 30])
async def test_a_cursor_that_is_none_is_refused(storage: Storage, cursor: str) -> None:
    run = await create(storage)

    with pytest.raises(InvalidInput, match=r"^after: must be the cursor of a line, e.g. '1.17'"):
        await storage.logs(run.id, after=cursor)


async def test_a_page_of_nothing_is_refused(storage: Storage) -> None:
    with pytest.raises(InvalidInput, match=r"^limit: must be 1 or more, not 0"):
        await storage.logs(OTHER_RUN, limit=0)


async def test_a_backlog_tells_due_later_parked_and_leased_apart(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    soon, long_ago = now() + timedelta(hours=1), now() - timedelta(minutes=2)
    for priority in (0, 5):
        await create(storage, queue="mail", priority=priority)
        await create(storage, queue="mail", priority=priority, run_at=soon)
    await create(storage, queue="mail", task="another", at=long_ago)
    await create(storage, queue="later", run_at=soon)
    await create(storage, queue="elsewhere", environment="staging")
    for _ in range(3):
        await create(storage, queue="narrow", concurrency_key="a")
    await claim(storage, 10, queues=("narrow",))

    found = {backlog.queue: backlog for backlog in await storage.backlog("default")}

    assert found.keys() == {"mail", "later", "narrow"}
    mail = found["mail"]
    assert (mail.due, mail.later, mail.parked, mail.leased) == (3, 2, 0, 0)
    assert timedelta(minutes=2) <= mail.oldest_due_age < timedelta(minutes=3)
    assert found["later"] == Backlog(queue="later", later=1)
    assert (found["narrow"].parked, found["narrow"].leased) == (2, 1)
