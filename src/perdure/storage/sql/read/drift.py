"""What lies beside runs and must follow from them: columns, tags, batches, keys, dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from perdure.core.run.codec import decode_events
from perdure.core.run.effects import Key, standing_keys
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.errors import UnreadableHistory
from perdure.storage.sql import rows
from perdure.storage.sql.rows import COLUMNS, RESERVED, Dialect
from perdure.storage.sql.statements import Operation, Row, Step, last_trip, trip

_BESIDE = 4 + len(COLUMNS)
"""What comes after what a run is made of, and its columns: tags, batch, dead letter."""
_SEQUENCE = 4 + COLUMNS.index("sequence")

NO_RUN = "its history is there, the run itself is not"
NO_BEGINNING = "the beginning of its history is not there"


def find_drift(run_ids: Sequence[str], dialect: Dialect) -> Operation[dict[str, list[str]]]:
    """By run, what is not as it says. Runs that move on meanwhile are left out."""
    ids = {"ids": rows.json_list([dialect.key(run_id) for run_id in run_ids])}
    [found] = yield trip(Step("read_columns", ids))
    runs = {run.id: (run, row) for run, row in _readable(found, dialect)}
    keys = [key for run, _ in runs.values() for key in standing_keys(run)]
    wanted = {"wanted": rows.json_list([rows.key_fields(key) for key in keys])}
    owned, again = yield last_trip(Step("read_keys", wanted), Step("read_runs", ids))
    owners = {tuple(row[:4]): dialect.run_id(row[4]) for row in owned}
    at_rest = {dialect.run_id(row[0]): row[1] for row in again}
    problems = {
        run.id: [*_columns(run, row, dialect), *_beside(run, row), *_keys(run, owners)]
        for run, row in runs.values()
        if at_rest.get(run.id) == row[_SEQUENCE]
    }
    return {run_id: told for run_id, told in problems.items() if told}


def find_strays(environment: str, limit: int, dialect: Dialect) -> Operation[dict[str, str]]:
    """Who has lost the other half. A history without a run says itself where it belongs; of one
    that cannot be read nobody knows, so everybody is told."""
    wanted = {"environment": environment, "limit": limit}
    headless, orphaned = yield last_trip(
        Step("runs_without_beginning", wanted), Step("histories_without_run", {"limit": limit})
    )
    strays = {
        dialect.run_id(run_id): NO_RUN
        for run_id, events in orphaned
        if _environment(events) in (None, environment)
    }
    return strays | {dialect.run_id(run_id): NO_BEGINNING for (run_id,) in headless}


def _environment(events: str) -> str | None:
    try:
        return decode_events(events)[0].environment
    except UnreadableHistory:
        return None


def _readable(found: Sequence[Row], dialect: Dialect) -> Iterator[tuple[Run, Row]]:
    """Who reads the history says what cannot be read."""
    for row in found:
        try:
            yield rows.run_of(row, dialect), row
        except UnreadableHistory:
            continue


def _columns(run: Run, row: Row, dialect: Dialect) -> Iterator[str]:
    stored = dict(zip(COLUMNS, row[4:_BESIDE], strict=True))
    expected = dict(zip(COLUMNS, rows.run_row(run, dialect), strict=True))
    for name in COLUMNS:
        is_id = name in ("id", "parent_id") and stored[name] is not None
        held = dialect.key(dialect.run_id(stored[name])) if is_id else stored[name]
        if held != expected[name] and not _may_differ(name, held, run):
            yield _difference(name, held, expected[name])


def _may_differ(name: str, held: Any, run: Run) -> bool:
    """Who waits for a place says so in its row only; so does who could not be read once. The state
    is compared with the history, value by value."""
    if name == "gate":
        return held not in (None, RESERVED) and run.claimable_at is not None
    return name == "state" or (name == "attention_at" and run.lease is not None)


def _difference(name: str, held: Any, expected: Any) -> str:
    if name == "lease_token":
        return "its column lease_token is not its lease's"
    return f"its column {name} is {held}, it says {expected}"


def _beside(run: Run, row: Row) -> Iterator[str]:
    tags, is_batched, has_letter = row[_BESIDE:]
    if (msgspec.json.decode(tags) if tags else {}) != run.tags:
        yield "it is not found by its tags"
    if bool(is_batched) != (run.batch_id is not None):
        yield "it is not found by its batch"
    if run.status is Status.DEAD_LETTERED and not has_letter:
        yield "it has no dead letter"


def _keys(run: Run, owners: dict[tuple[Any, ...], str]) -> Iterator[str]:
    for key in standing_keys(run):
        owner = owners.get((key.environment, key.kind, key.scope, key.name))
        if owner != run.id:
            yield f"its {_named(key)} is {'nobody' if owner is None else owner}'s"


def _named(key: Key) -> str:
    return f"{key.kind} key {key.name!r}"
