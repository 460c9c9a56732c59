"""The statement that moves known runs on, and its rows.

Every run is claimed and started once and ends once: these two steps change little, and have
statements of their own, which touch nothing else. Everything rarer takes the statement that can
do it all. Storage tells them apart by their events, and decides nothing by that.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.run.codec import encode_state
from perdure.core.run.commit import Commit
from perdure.core.run.events import (
    RunCancelled,
    RunDeadLettered,
    RunExpired,
    RunFailed,
    RunLeaseClaimed,
    RunSkipped,
    RunStarted,
    RunSucceeded,
)
from perdure.storage.sql.rows import Dialect, gate_of
from perdure.storage.sql.statements import Bulk, Row

_ENDINGS = (RunSucceeded, RunFailed, RunDeadLettered, RunCancelled, RunExpired, RunSkipped)


def advances(items: Sequence[Commit], dialect: Dialect) -> Bulk:
    """One statement for all: whoever locks several runs does so in order of id."""
    if items and _start_together(items):
        return Bulk("start_runs", [_started(item, dialect) for item in items])
    if items and _end_together(items):
        return Bulk("end_runs", [_ended(item, dialect) for item in items])
    return updates(items, dialect)


def updates(items: Sequence[Commit], dialect: Dialect) -> Bulk:
    """The same, by the statement that can do it all, and tells who was moved."""
    return Bulk("update_runs", [_known(item, dialect) for item in items])


def _start_together(items: Sequence[Commit]) -> bool:
    """Whether one worker begins them all, with leases of one length: that is sent once."""
    run, held = items[0].run, items[0].lease_token
    if run.lease is None:
        return False
    worker_id, ends, environment = run.lease.worker_id, run.lease.expires_at, run.environment
    for item in items:
        lease = item.run.lease
        if lease is None or lease.expires_at != ends or lease.worker_id != worker_id:
            return False
        if item.run.environment != environment or item.lease_token != held:
            return False
    return all(map(_starts, items))


def _starts(item: Commit) -> bool:
    events = item.events
    if len(events) != 2 or type(events[1]) is not RunStarted:
        return False
    return type(events[0]) is RunLeaseClaimed


def _end_together(items: Sequence[Commit]) -> bool:
    environment = items[0].run.environment
    return all(_ends(item) and item.run.environment == environment for item in items)


def _ends(item: Commit) -> bool:
    return len(item.events) == 1 and type(item.events[0]) in _ENDINGS


def _started(item: Commit, dialect: Dialect) -> Row:
    """For `start_runs`."""
    run, lease = item.run, item.run.lease
    assert lease is not None
    return (
        run.status._value_,  # not `.value`, which is a call
        lease.worker_id,
        dialect.instant(lease.expires_at),
        dialect.key(run.id),
        item.expected_sequence,
        run.sequence,
        lease.token,
        int(run.holds_schedule_slot),  # SQLite's driver takes its time over a bool
        encode_state(run),
        run.environment,
        item.lease_token,
    )


def _ended(item: Commit, dialect: Dialect) -> Row:
    """For `end_runs`."""
    run, failure = item.run, item.run.failure
    return (
        dialect.key(run.id),
        item.expected_sequence,
        item.lease_token,
        run.status._value_,
        run.sequence,
        dialect.instant(run.finished_at),
        "" if failure is None else failure.kind.value,
        "" if failure is None else failure.fingerprint,
        encode_state(run),
        run.environment,
    )


def _known(item: Commit, dialect: Dialect) -> Row:
    """For `update_runs`: what must be stored, and what shall be."""
    run, lease, failure = item.run, item.run.lease, item.run.failure
    return (
        dialect.key(run.id),
        run.environment,
        item.expected_sequence,
        item.lease_token,
        run.queue,
        run.required_version,
        run.priority,
        run.status._value_,
        run.sequence,
        dialect.instant(run.claimable_at),
        None if lease is not None else dialect.instant(run.attention_at),
        None if lease is None else lease.token,
        None if lease is None else lease.worker_id,
        None if lease is None else dialect.instant(lease.expires_at),
        run.holds_schedule_slot,
        gate_of(run),
        dialect.instant(run.finished_at),
        None if failure is None else failure.kind.value,
        None if failure is None else failure.fingerprint,
        encode_state(run),
    )
