"""Find dead letters and close them, alone or with the runs that replay them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict, replace

from perdure.core.run.commit import Commit
from perdure.core.run.effects import DeadLetter, DeadLetterClosed
from perdure.core.run.run import is_run_id
from perdure.errors import InvalidInput, SequenceConflict
from perdure.storage.contract.inspection import LetterFilter, LetterPage
from perdure.storage.contract.runs import Outcome
from perdure.storage.sql import rows
from perdure.storage.sql.read.runs import keys_of, runs_of
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Step, last_trip, trip


def find_dead_letters(
    filter: LetterFilter, limit: int, cursor: str | None, dialect: Dialect
) -> Operation[LetterPage]:
    """One more than asked for tells whether there is another page."""
    if limit < 1:
        raise InvalidInput("limit", f"must be 1 or more, not {limit}")
    if cursor is not None and not is_run_id(cursor):
        raise InvalidInput("cursor", f"{cursor!r:.80} is not the id of a run")
    wanted = asdict(filter) | {"limit": limit + 1, "cursor": dialect.key(cursor)}
    [found] = yield last_trip(Step("find_dead_letters", wanted))
    letters = tuple(rows.dead_letter_of(row, dialect) for row in found[:limit])
    return LetterPage(letters, letters[-1].run_id if len(found) > limit else None)


def find_letter_ids(
    filter: LetterFilter, opened_until: datetime, limit: int, cursor: str | None, dialect: Dialect
) -> Operation[list[str]]:
    opened = {"opened_until": dialect.instant(opened_until)}
    page = {"limit": limit, "cursor": dialect.key(cursor)}
    [found] = yield last_trip(Step("find_dead_letter_ids", asdict(filter) | opened | page))
    return [dialect.run_id(run_id) for (run_id,) in found]


def count_letters(filter: LetterFilter, most: int) -> Operation[int]:
    [[[count]]] = yield last_trip(Step("count_dead_letters", asdict(filter) | {"most": most}))
    return int(count)


def read_dead_letter(run_id: str, dialect: Dialect) -> Operation[DeadLetter | None]:
    if not is_run_id(run_id):
        return None
    letters, found = yield last_trip(
        Step("read_dead_letter", {"run_id": dialect.key(run_id)}),
        Step("get_runs", {"ids": keys_of([run_id], dialect)}),
    )
    if not letters:
        return None
    letter, runs = rows.dead_letter_of(letters[0], dialect), runs_of(found, dialect)
    return replace(letter, payload_json=runs[0].payload_json) if runs else letter


def close_dead_letters(
    closings: Sequence[DeadLetterClosed], dialect: Dialect
) -> Operation[frozenset[str]]:
    fields = [rows.closing_fields(closed, dialect) for closed in closings]
    [kept] = yield last_trip(Step("close_dead_letters", {"closings": rows.json_list(fields)}))
    return frozenset(dialect.run_id(row[0]) for row in kept)


def close_replayed(
    batch: Sequence[Commit], outcomes: dict[int, Outcome], dialect: Dialect
) -> Operation[None]:
    """A guarded effect: an item whose dead letter is closed already is not stored. Of two items
    that close one dead letter the first wins."""
    wanted: dict[str, int] = {}
    losers: list[int] = []
    for index, item in enumerate(batch):
        closed = item.effects.dead_letter_closed
        if closed is None or index in outcomes:
            continue
        if wanted.setdefault(closed.run_id, index) != index:
            losers.append(index)
    if not wanted:
        return
    closings = [_closing_fields(batch[index], dialect) for index in wanted.values()]
    [kept] = yield trip(Step("close_dead_letters", {"closings": rows.json_list(closings)}))
    kept_ids = {dialect.run_id(row[0]) for row in kept}
    losers += [index for run_id, index in wanted.items() if run_id not in kept_ids]
    outcomes.update((index, _refuse_closed(batch[index])) for index in losers)
    if not losers:
        return
    keys = [row for index in losers for row in rows.taken_key_fields(batch[index], dialect)]
    yield trip(Many("drop_keys", keys))


def _closing_fields(item: Commit, dialect: Dialect) -> rows.Fields:
    closed = item.effects.dead_letter_closed
    assert closed is not None
    return rows.closing_fields(closed, dialect, item.run.environment)


def _refuse_closed(item: Commit) -> SequenceConflict:
    closed, expected = item.effects.dead_letter_closed, item.expected_sequence
    assert closed is not None
    problem = f"the dead letter of {closed.run_id} is not open any more"
    return SequenceConflict(item.run.id, expected, expected, problem)
