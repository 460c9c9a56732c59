"""The commit operation: judge every item against the stored rows, then write the winners.

Lock order, here and everywhere: runs by id, then keys by key, then limits by name. What is
read after a lock is read in a later statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec

from perdure.core.run.commit import Commit
from perdure.core.run.effects import NO_EFFECTS, Key, payload_hash
from perdure.errors import InvariantViolation, SequenceConflict
from perdure.storage.contract.runs import Committed, Existing, Outcome
from perdure.storage.sql import rows
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Bulk, Many, Operation, Rows, Statement, Step, Trip, trip
from perdure.storage.sql.write.advance import advances, updates
from perdure.storage.sql.write.dead_letters import close_replayed


class Stored(msgspec.Struct, frozen=True):
    """A run's row as it was found, under lock."""

    sequence: int
    environment: str
    lease_token: str | None
    lease_expires_at: datetime | None


class Found(msgspec.Struct, frozen=True):
    """What the database holds about a batch, at storage time `now`."""

    now: datetime | None
    runs: dict[str, Stored]
    commit_ids: dict[tuple[str, int], str]
    any_parked: bool = False


MAX_SEQUENCE = 2**31 - 1
"""The largest sequence that a column holds."""


def commit_batch(
    batch: Sequence[Commit], dialect: Dialect, *, settling: bool = False
) -> Operation[list[Outcome]]:
    """Store a batch. `settling`: it may have been stored before; look at new runs' rows too."""
    outcomes, writes = yield from judge_batch(batch, dialect, settling=settling)
    yield Trip(writes.steps, last=True)
    return outcomes


def judge_batch(
    batch: Sequence[Commit], dialect: Dialect, *, settling: bool = False
) -> Operation[tuple[list[Outcome], Trip]]:
    """What has become of each item, or will by the writes that are left."""
    if not settling and _only_advances(batch):
        return (yield from _advance(batch, dialect))
    outcomes, any_parked = yield from judge_items(batch, dialect, settling=settling)
    winners = [item for index, item in enumerate(batch) if index not in outcomes]
    for index, item in enumerate(batch):
        if index not in outcomes:
            outcomes[index] = Committed(item.run.id, item.run.sequence, item.records)
    results = [outcomes[index] for index in range(len(batch))]
    return results, writes_of(winners, dialect, any_parked=any_parked)


def judge_items(
    batch: Sequence[Commit], dialect: Dialect, *, settling: bool = False
) -> Operation[tuple[dict[int, Outcome], bool]]:
    """The verdicts on those that are not to be written, the others having taken their keys; and
    whether any run is parked."""
    found = yield from _find(batch, dialect, settling)
    outcomes: dict[int, Outcome] = {}
    seen: set[str] = set()
    for index, item in enumerate(batch):
        verdict = _judge(item, found, repeated=item.run.id in seen)
        seen.add(item.run.id)
        if verdict is not None:
            outcomes[index] = verdict
    yield from _refuse_recorded(batch, outcomes, dialect)
    yield from _take_keys(batch, outcomes, dialect)
    yield from close_replayed(batch, outcomes, dialect)
    return outcomes, found.any_parked


def _only_advances(batch: Sequence[Commit]) -> bool:
    """Whether each item takes another known run a step further, and says what that rests on: then
    the update itself can tell who may."""
    ids = {item.run.id for item in batch}
    return len(ids) == len(batch) and all(map(_advances, batch))


def _advances(item: Commit) -> bool:
    if not _has_sequence(item) or item.expected_sequence == 0:
        return False
    if item.needs_expiry or _contradiction(item, None) is not None:
        return False
    effects = item.effects
    return effects is NO_EFFECTS or not (effects.keys_taken or effects.dead_letter_closed)


def _has_sequence(item: Commit) -> bool:
    """Return whether the events of a commit can follow its `expected_sequence`."""
    expected = item.expected_sequence
    return type(expected) is int and 0 <= expected <= MAX_SEQUENCE - len(item.events)


def advance_unseen(batch: Sequence[Commit], dialect: Dialect) -> Trip | None:
    """Everything that `batch` makes true if nobody else has written to its runs, its first answer
    being how many moved, its last whether any run is parked; None if that takes a look first."""
    if not _only_advances(batch):
        return None
    ordered = sorted(batch, key=lambda item: item.run.id)
    return trip(advances(ordered, dialect), *_records(ordered, [], dialect), Step("any_parked"))


def gates_opened(batch: Sequence[Commit]) -> list[Statement]:
    """For whoever may be parked."""
    return [Step("open_gate", gate) for gate in _opened(batch)]


def _advance(batch: Sequence[Commit], dialect: Dialect) -> Operation[tuple[list[Outcome], Trip]]:
    """Move all runs that are where their step begins. The others have moved on: nobody needs to
    lock those to be told so."""
    ordered = sorted(batch, key=lambda item: item.run.id)
    moved, [[any_parked]] = yield trip(updates(ordered, dialect), Step("any_parked"))
    winners, verdicts = batch, {}
    if len(moved) < len(batch):
        won = {dialect.run_id(row[0]) for row in moved}
        winners = [item for item in batch if item.run.id in won]
        lost = [item for item in batch if item.run.id not in won]
        verdicts = yield from _verdicts(lost, dialect)
    outcomes = [
        verdicts.get(item.run.id) or Committed(item.run.id, item.run.sequence, item.records)
        for item in batch
    ]
    return outcomes, trip(*_records(winners, winners if any_parked else [], dialect))


def _verdicts(lost: Sequence[Commit], dialect: Dialect) -> Operation[dict[str, Outcome]]:
    ids = rows.json_list([dialect.key(item.run.id) for item in lost])
    [found] = yield trip(Step("read_runs", {"ids": ids}))
    runs = _stored(found, dialect)
    commit_ids = yield from _read_commit_ids([i for i in lost if _is_stale(i, runs)], dialect)
    known = Found(None, runs, commit_ids)
    return {item.run.id: _judge(item, known, repeated=False) or _overtaken(item) for item in lost}


def _overtaken(item: Commit) -> SequenceConflict:
    expected = item.expected_sequence
    return SequenceConflict(item.run.id, expected, expected, "it was written to meanwhile")


def writes_of(winners: Sequence[Commit], dialect: Dialect, *, any_parked: bool) -> Trip:
    """Everything the winners make true."""
    new = [item for item in winners if item.expected_sequence == 0]
    known = [item for item in winners if item.expected_sequence > 0]
    return trip(
        Bulk("insert_runs", [rows.run_row(item.run, dialect) for item in new]),
        advances(known, dialect),
        Many("insert_batches", [row for i in new for row in rows.batch_fields(i, dialect)]),
        Many("insert_tags", [row for item in new for row in rows.tag_fields(item.run, dialect)]),
        *_records(winners, known if any_parked else [], dialect),
    )


def _records(
    winners: Sequence[Commit], opening: Sequence[Commit], dialect: Dialect
) -> list[Statement]:
    """What is written beside the runs themselves. `opening`: those that may open gates."""
    steps: list[Statement] = [
        Bulk("insert_history", [rows.history(item, dialect) for item in winners])
    ]
    rich = [item for item in winners if item.effects is not NO_EFFECTS]
    if rich:
        letters = [item.effects.dead_letter for item in rich if item.effects.dead_letter]
        steps += [
            Many("free_keys", [row for i in rich for row in rows.freed_key_fields(i, dialect)]),
            Many("insert_dead_letters", [rows.dead_letter_fields(row, dialect) for row in letters]),
            Many("insert_outbox", [row for i in rich for row in rows.outbox_fields(i, dialect)]),
        ]
    return steps + gates_opened(opening)


def _find(batch: Sequence[Commit], dialect: Dialect, settling: bool) -> Operation[Found]:
    """The stored rows, locked. New runs need no look: if they are stored already, their insert
    tells. But one that would first take keys or close a dead letter must not do that twice, and
    one that contradicts itself is first of all a conflict if it exists."""
    batch = [item for item in batch if _has_sequence(item)]
    ids = sorted({item.run.id for item in batch if settling or _needs_a_look(item)})
    if not ids:
        return Found(None, {}, {})
    keys = rows.json_list([dialect.key(run_id) for run_id in ids])
    locked, [[now]], [[any_parked]] = yield trip(
        Step("lock_runs", {"ids": keys}), Step("read_time"), Step("any_parked")
    )
    runs = _stored(locked, dialect)
    stale = [item for item in batch if _is_stale(item, runs)]
    commit_ids = yield from _read_commit_ids(stale, dialect)
    return Found(dialect.moment(now), runs, commit_ids, bool(any_parked))


def _stored(found: Rows, dialect: Dialect) -> dict[str, Stored]:
    return {
        dialect.run_id(row[0]): Stored(row[1], row[2], row[3], dialect.moment(row[4]))
        for row in found
    }


def _needs_a_look(item: Commit) -> bool:
    guarded = bool(item.effects.keys_taken) or item.effects.dead_letter_closed is not None
    return item.expected_sequence != 0 or guarded or _contradiction(item, None) is not None


def _is_stale(item: Commit, runs: dict[str, Stored]) -> bool:
    stored = runs.get(item.run.id)
    return stored is not None and stored.sequence != item.expected_sequence


def _read_commit_ids(
    stale: Sequence[Commit], dialect: Dialect
) -> Operation[dict[tuple[str, int], str]]:
    if not stale:
        return {}
    wanted = [
        {"run_id": dialect.key(item.run.id), "first_sequence": item.expected_sequence + 1}
        for item in stale
    ]
    [found] = yield trip(Step("read_commit_ids", {"wanted": rows.json_list(wanted)}))
    return {(dialect.run_id(run_id), first): commit_id for run_id, first, commit_id in found}


def _judge(item: Commit, found: Found, *, repeated: bool) -> Outcome | None:
    """The verdict on one item, or none if nothing is wrong with it. The order is the contract."""
    stored, run, expected = found.runs.get(item.run.id), item.run, item.expected_sequence
    if not _has_sequence(item):
        return InvariantViolation(run.id, f"{expected!r:.80} is not a sequence")
    if stored is not None and stored.environment != run.environment:
        return _refuse_foreign(item)
    if stored is not None and stored.sequence != expected:
        if found.commit_ids.get((run.id, expected + 1)) == item.commit_id:
            return Committed(run.id, run.sequence, item.records)
        return SequenceConflict(run.id, expected, stored.sequence)
    if (stored is None and expected > 0) or repeated:
        return SequenceConflict(run.id, expected, None if stored is None else stored.sequence)
    problem = _contradiction(item, stored)
    if problem is not None:
        return InvariantViolation(run.id, problem)
    if item.needs_expiry and _is_alive(stored, found.now):
        return SequenceConflict(run.id, expected, expected, "its lease was renewed meanwhile")
    return None


def _refuse_foreign(item: Commit) -> Outcome:
    """Refuse a commit for a run of another environment, and say nothing about that run."""
    expected = item.expected_sequence
    why = None if expected > 0 else "its id cannot be used here; make another one"
    return SequenceConflict(item.run.id, expected, None, why)


def _contradiction(item: Commit, stored: Stored | None) -> str | None:
    for event in item.events:
        if event.run_id != item.run.id or event.environment != item.run.environment:
            return "its commit holds events of another run or environment"
    if item.run.sequence != item.expected_sequence + len(item.events) or not item.events:
        last = item.expected_sequence + len(item.events)
        return f"its {len(item.events)} events end at {last}, its projection at {item.run.sequence}"
    if stored is not None and stored.lease_token != item.lease_token:
        return "its lease has another token than the commit was made for"
    return None


def _is_alive(stored: Stored | None, now: datetime | None) -> bool:
    expiry = None if stored is None else stored.lease_expires_at
    return expiry is not None and now is not None and expiry > now


def _refuse_recorded(
    batch: Sequence[Commit], outcomes: dict[int, Outcome], dialect: Dialect
) -> Operation[None]:
    """One occurrence for each nominal time: one that lies in a span of skips has been."""
    wanted = [
        {
            "run_id": dialect.key(item.run.id),
            "environment": item.run.environment,
            "schedule_id": item.run.schedule_id,
            "at": dialect.instant(item.run.source.nominal_time),
        }
        for index, item in enumerate(batch)
        if item.run.occurrence_key is not None and index not in outcomes and _is_occurrence(item)
    ]
    if not wanted:
        return
    [covered] = yield trip(Step("covering_spans", {"wanted": rows.json_list(wanted)}))
    recorded = {dialect.run_id(row[0]) for row in covered}
    for index, item in enumerate(batch):
        if item.run.id in recorded and index not in outcomes:
            why = f"{item.run.occurrence_key} was recorded as skipped"
            outcomes[index] = SequenceConflict(item.run.id, 0, 0, why)


def _is_occurrence(item: Commit) -> bool:
    """Whether it takes the key of a nominal time: its own, not one made up for it."""
    run = item.run
    own = not (run.occurrence_key or "").startswith("manual:")
    return own and item.expected_sequence == 0 and run.source.nominal_time is not None


def _take_keys(
    batch: Sequence[Commit], outcomes: dict[int, Outcome], dialect: Dialect
) -> Operation[None]:
    """Give each wanted key to the first that wants it; answer the others with the owner.

    Who loses one key gives back those it got, so that a later item of the batch may have them:
    hence the rounds. Each round settles at least one item.
    """
    pending = [
        index
        for index, item in enumerate(batch)
        if index not in outcomes and item.effects.keys_taken
    ]
    freeing = [item for index, item in enumerate(batch) if index not in outcomes]
    while pending:
        owners = yield from _round_of_keys([batch[index] for index in pending], freeing, dialect)
        verdicts = {index: _lost_key(batch[index], owners) for index in pending}
        losers = {batch[index].run.id for index, verdict in verdicts.items() if verdict}
        yield trip(Many("drop_keys", _given_back(batch, verdicts, owners, dialect)))
        again = []
        for index, verdict in verdicts.items():
            if verdict is not None and verdict.run_id in losers:
                again.append(index)
            elif verdict is not None:
                outcomes[index] = verdict
        pending = again


def _round_of_keys(
    items: Sequence[Commit], freeing: Sequence[Commit], dialect: Dialect
) -> Operation[dict[Key, tuple[str, str]]]:
    claimants: dict[Key, Commit] = {}
    for item in items:
        for key in item.effects.keys_taken:
            claimants.setdefault(key, item)
    # Keys this batch will free are locked here too, since all must be locked in one order.
    locked = {freed.key: item for item in freeing for freed in item.effects.keys_freed} | claimants
    taken = [rows.owned_key_fields(locked[key], key, dialect) for key in sorted(locked)]
    wanted = rows.json_list([rows.key_fields(key) for key in claimants])
    _, found = yield trip(Many("take_keys", taken), Step("read_keys", {"wanted": wanted}))
    owners = {tuple(row[:4]): (dialect.run_id(row[4]), row[5]) for row in found}
    return {key: owners[key.environment, key.kind, key.scope, key.name] for key in claimants}


def _lost_key(item: Commit, owners: dict[Key, tuple[str, str]]) -> Existing | None:
    for key in item.effects.keys_taken:
        owner, hash = owners[key]
        if owner != item.run.id:
            return Existing(owner, key, same_payload=hash == payload_hash(item.run))
    return None


def _given_back(
    batch: Sequence[Commit],
    verdicts: dict[int, Existing | None],
    owners: dict[Key, tuple[str, str]],
    dialect: Dialect,
) -> list[rows.Fields]:
    return [
        rows.key_fields(key) | {"run_id": dialect.key(batch[index].run.id)}
        for index, verdict in verdicts.items()
        if verdict is not None
        for key in batch[index].effects.keys_taken
        if owners[key][0] == batch[index].run.id
    ]


def _opened(items: Sequence[Commit]) -> list[rows.Fields]:
    """For each lease or slot that ends, one place behind each gate that may have waited for it."""
    room = Counter((item.run.environment, str(gate)) for item in items for gate in item.freed)
    return [
        {"environment": environment, "gate": gate, "room": places}
        for (environment, gate), places in sorted(room.items())
    ]
