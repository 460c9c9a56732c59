"""Appending: sequences, targets, errors that never mix; creation and delivery."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from builders import (
    CLIENT,
    PAYLOAD,
    RUN_ID,
    T0,
    TASK,
    a_policy,
    a_run,
    after,
    created,
    delivery_requested,
    effect,
    history,
    lease_claimed,
    lease_heartbeat,
    lease_returned,
    parked,
    started,
    succeeded,
    then,
)
from perdure.core.run.events import RunCreated
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import MAX_SEQUENCE, apply, project, replay
from perdure.core.run.run import Counters, Source, SourceType
from perdure.errors import InvariantViolation, SequenceConflict

SOON = after(60)


def test_a_creation_alone_gives_a_queued_run_at_sequence_one() -> None:
    run = replay([created()])

    assert (run.status, run.sequence, run.counters) == (Status.QUEUED, 1, Counters())
    assert (run.id, run.environment, run.task) == (RUN_ID, "default", TASK)
    assert (run.created_at, run.updated_at, run.created_by) == (T0, T0, CLIENT)
    assert (run.root_id, run.tags, run.meta) == (RUN_ID, {}, {})
    assert (run.payload, run.result) == ({"to": "ada"}, None)


def full_creation() -> RunCreated:
    return created(
        source=Source(type=SourceType.SCHEDULE, schedule_id="s", nominal_time=T0),
        occurrence_key="s:2026-03-01T12:00:00Z",
        parent_id="run_parent",
        root_id="run_root",
        continuation_of="run_before",
        lineage_depth=3,
        batch_id="batch",
        concurrency_key="tenant",
        idempotency_key="once",
        singleton_key="alone",
        tags={"colour": "blue"},
        meta={"trace": 1},
        expires_at=after(900),
        run_at=SOON,
        priority=7,
        policy=a_policy(max_attempts=9),
        task_version=4,
        debug=True,
        trace_carrier={"traceparent": "00"},
    )


def test_a_creation_copies_every_field_it_carries() -> None:
    event = full_creation()
    run = replay([event])
    renamed = {"run_id": run.id, "occurred_at": run.created_at, "actor": run.created_by}

    for name in set(event.__struct_fields__) - {"lease_expires_at"}:
        assert renamed.get(name, getattr(run, name, None)) == getattr(event, name), name
    assert run.requested_at == SOON


def test_a_creation_leaves_everything_else_empty() -> None:
    run = replay([created()])

    empty = ("lease", "dispatched_at", "dispatch_expires_at", "started_at", "finished_at")
    assert [getattr(run, name) for name in empty] == [None] * 5
    assert (run.failure, run.streak, run.reason) == (None, None, None)
    assert (run.cancellation, run.awaiting) == (None, None)
    assert run.result_json is UNSET


@pytest.mark.parametrize("event", [started(), delivery_requested(), succeeded()])
def test_anything_else_cannot_come_first(event: Any) -> None:
    with pytest.raises(InvariantViolation, match="cannot be the first event"):
        project(None, [event], 0)


def test_a_second_creation_is_refused() -> None:
    with pytest.raises(InvariantViolation, match=r"run\.created cannot happen"):
        project(None, [created(), created()], 0)


def test_an_append_of_nothing_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="at least one event"):
        project(a_run(), [], 1)
    with pytest.raises(InvariantViolation, match="at least one event"):
        project(None, [], 0)


@pytest.mark.parametrize("expected", [-1, 1.5, 1.0, True, "1", None, MAX_SEQUENCE + 1])
def test_what_is_no_sequence_is_a_violation(expected: Any) -> None:
    with pytest.raises(InvariantViolation, match="is not a sequence"):
        project(a_run(), [lease_claimed()], expected)


@pytest.mark.parametrize("expected", [0, 1, 3, MAX_SEQUENCE])
def test_another_sequence_is_a_retryable_conflict(expected: int) -> None:
    with pytest.raises(SequenceConflict) as caught:
        project(a_run(Status.CLAIMED), [started()], expected)

    assert caught.value.retryable
    assert (caught.value.expected, caught.value.actual) == (expected, 2)


def test_a_run_that_does_not_exist_yet_conflicts_with_every_sequence_but_zero() -> None:
    with pytest.raises(SequenceConflict, match="does not exist") as caught:
        project(None, [started()], 3)

    assert caught.value.actual is None


@pytest.mark.parametrize("events", [[], [created()], [started(run_id="run_other")]])
def test_a_stale_sequence_is_a_conflict_even_if_the_events_are_impossible(events: Any) -> None:
    with pytest.raises(SequenceConflict):
        project(a_run(Status.SUCCEEDED), events, 2)


def test_three_events_after_four_get_five_six_and_seven() -> None:
    run = then(a_run(Status.CLAIMED), lease_returned(), lease_claimed())
    assert run.sequence == 4

    run = project(run, [lease_heartbeat(), started(), succeeded()], 4)

    assert run.sequence == 7


@pytest.mark.parametrize("other", [{"run_id": "run_other"}, {"environment": "other"}])
def test_an_event_of_another_run_or_environment_is_refused(other: Any) -> None:
    with pytest.raises(InvariantViolation, match="targets run"):
        apply(a_run(), lease_claimed(**other))


def test_an_event_before_the_last_one_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="before the run's last event"):
        apply(a_run(), lease_claimed(at=T0 - timedelta(microseconds=1)))


def test_splitting_an_append_gives_the_same_run() -> None:
    events = history(Status.SUCCEEDED)

    for cut in range(1, len(events)):
        assert project(replay(events[:cut]), events[cut:], cut) == replay(events)


def test_source_and_meta_of_the_creation_outlive_later_meta() -> None:
    run = a_run(meta={"a": 1})

    assert effect(run, lease_claimed(meta={"b": 2})).keys() == {"status", "counters", "lease"}


def test_a_payload_is_kept_byte_for_byte() -> None:
    raw = msgspec.Raw(b'{"n" : 1.10, "n": 1e2}')

    assert bytes(a_run(payload_json=raw).payload_json) == bytes(raw)
    assert bytes(a_run().payload_json) == bytes(PAYLOAD)


def test_a_delivery_for_later_schedules_the_run() -> None:
    wish = {"available_at": SOON}

    changes = effect(a_run(), delivery_requested(delivery=wish))
    assert changes == {"status": Status.SCHEDULED, "run_at": SOON}


@pytest.mark.parametrize("available_at", [T0, T0 - timedelta(seconds=9)])
def test_a_delivery_for_now_or_earlier_queues_the_run(available_at: Any) -> None:
    event = delivery_requested(delivery={"available_at": available_at})

    assert effect(a_run(), event) == {"run_at": available_at}


def test_a_due_run_is_delivered_and_one_that_is_not_due_is_refused() -> None:
    for status, due in ((Status.SCHEDULED, 600), (Status.RETRYING, 30), (Status.RELEASED, 30)):
        run = a_run(status)
        with pytest.raises(InvariantViolation, match="is due"):
            apply(run, delivery_requested(at=after(due - 1)))

        changes = effect(run, delivery_requested(at=after(due)))
        assert changes == {"status": Status.QUEUED}, status


def test_a_delivery_ends_a_wait() -> None:
    changes = effect(a_run(Status.WAITING), delivery_requested())

    assert changes == {"status": Status.QUEUED, "run_at": T0, "awaiting": None}


def test_a_delivery_while_the_lease_is_live_is_refused() -> None:
    for status in (Status.CLAIMED, Status.RUNNING):
        with pytest.raises(InvariantViolation, match="lease expired"):
            apply(a_run(status), delivery_requested(at=after(59)))


def test_a_delivery_takes_an_expired_lease_away_and_counts_an_abandon() -> None:
    for status, more in (
        (Status.CLAIMED, {"counters": Counters(claims=1, abandons=1)}),
        (Status.RUNNING, {"counters": Counters(claims=1, attempts=1, abandons=1), "deaths": 1}),
    ):
        changes = effect(a_run(status), delivery_requested(at=after(60)))

        expected = {"status": Status.QUEUED, "run_at": after(60), "lease": None}
        assert changes == expected | more


def test_a_lease_renewed_without_an_event_is_not_expired_for_a_delivery() -> None:
    event = delivery_requested(at=after(60), lease_expires_at=after(61))

    with pytest.raises(InvariantViolation, match="lease expired"):
        apply(a_run(Status.RUNNING), event)


def test_a_delivery_with_a_reservation_sets_it_and_one_without_clears_it() -> None:
    reserved = delivery_requested(at=after(1), delivery={"dispatch_expires_at": SOON})
    reservation = {"dispatched_at": after(1), "dispatch_expires_at": SOON}

    assert effect(a_run(), reserved) == {"run_at": after(1)} | reservation

    run = then(a_run(), reserved)
    cleared = {"dispatched_at": None, "dispatch_expires_at": None}
    assert effect(run, delivery_requested(at=after(2))) == {"run_at": after(2)} | cleared


@pytest.mark.parametrize(
    ("of_delivery", "of_event", "expected"),
    [
        ({"d": "1"}, {"e": "1"}, {"d": "1"}),
        (None, {"e": "1"}, {"e": "1"}),
        (None, None, {"c": "1"}),
        ({}, {"e": "1"}, {}),
        (None, {}, {}),
    ],
)
def test_the_trace_carrier_is_the_deliverys_else_the_events_else_the_current(
    of_delivery: Any, of_event: Any, expected: dict[str, str]
) -> None:
    event = delivery_requested(delivery={"trace_carrier": of_delivery}, trace_carrier=of_event)

    run = apply(a_run(trace_carrier={"c": "1"}), event)

    assert run.trace_carrier == expected


def test_a_run_without_any_trace_carrier_stays_without() -> None:
    assert apply(a_run(), delivery_requested()).trace_carrier is None


def test_claimable_at_is_the_due_time_where_a_worker_may_claim() -> None:
    due = {
        Status.QUEUED: T0,
        Status.SCHEDULED: after(600),
        Status.RETRYING: after(30),
        Status.RELEASED: after(30),
    }
    for status in Status:
        assert a_run(status).claimable_at == due.get(status), status


def test_a_wait_is_claimable_at_its_deadline_only() -> None:
    event = parked()
    assert event.awaiting is not None
    timed = replace(event, awaiting=replace(event.awaiting, deadline=SOON))

    assert a_run(Status.WAITING).claimable_at is None
    assert then(a_run(Status.RUNNING), timed).claimable_at == SOON


def test_one_step_of_priority_is_worth_an_hour_of_waiting() -> None:
    assert a_run(priority=2).claim_rank == T0 - timedelta(hours=2)
    assert a_run().claim_rank == T0
    assert a_run(Status.PAUSED).claim_rank is None


def test_attention_is_due_at_the_lease_expiry_or_the_first_of_ttl_and_reservation() -> None:
    reserve = delivery_requested(delivery={"dispatch_expires_at": SOON})

    assert a_run(Status.RUNNING, expires_at=after(9)).attention_at == after(60)
    assert a_run(expires_at=after(9)).attention_at == after(9)
    assert then(a_run(expires_at=after(99)), reserve).attention_at == SOON
    assert then(a_run(), reserve).attention_at == SOON
    assert a_run(Status.RETRYING, expires_at=after(9)).attention_at is None
    assert a_run().attention_at is None


def test_an_occurrence_holds_its_slot_from_the_first_claim_to_the_end() -> None:
    source = Source(type=SourceType.SCHEDULE, schedule_id="nightly")
    unclaimed = {Status.QUEUED, Status.SCHEDULED, Status.PAUSED}

    for status in Status:
        run = a_run(status, source=source)
        assert run.holds_schedule_slot == (status not in unclaimed and not run.is_terminal)
        assert not a_run(status).holds_schedule_slot
