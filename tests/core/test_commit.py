"""One run's step, ready to be stored."""

from __future__ import annotations

import pytest

from builders import (
    OPERATOR,
    QUEUE,
    TOKEN,
    Builder,
    a_run,
    after,
    cancellation_requested,
    cancelled,
    created,
    delivery_requested,
    history,
    lease_claimed,
    lease_heartbeat,
    retry_scheduled,
    started,
    succeeded,
)
from perdure.core.limits.admission import Gate, LimitScope
from perdure.core.run.commit import Commit, prepare_commit, rests_on_expiry
from perdure.core.run.effects import (
    DeadLetterStatus,
    Effects,
    Key,
    KeyKind,
    close_dead_letter,
    consequences,
)
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import SYSTEM
from perdure.errors import InvariantViolation


def test_a_new_run_starts_at_nothing_and_holds_nothing() -> None:
    event = created(idempotency_key="once")

    commit = prepare_commit(None, [event], "commit-1")

    key = Key("default", KeyKind.IDEMPOTENCY, event.task, "once")
    assert commit == Commit(
        commit_id="commit-1",
        expected_sequence=0,
        events=(event,),
        run=a_run(idempotency_key="once"),
        effects=Effects(keys_taken=(key,)),
    )


def test_the_records_of_a_commit_stand_after_the_stored_history() -> None:
    event = succeeded()
    commit = prepare_commit(a_run(Status.RUNNING), [event], "commit-1")

    [record] = commit.records

    assert (record.sequence, record.event) == (4, event)
    assert (record.type, record.actor) == (event.type, event.actor)
    assert record.occurred_at == event.occurred_at


def test_a_step_of_the_holder_names_the_token() -> None:
    commit = prepare_commit(a_run(Status.RUNNING), [succeeded()], "commit-1")

    assert (commit.expected_sequence, commit.lease_token) == (3, TOKEN)
    assert commit.needs_expiry is False
    assert commit.effects == consequences(a_run(Status.SUCCEEDED), [succeeded()])


def test_a_claim_needs_a_row_without_a_lease_and_frees_none() -> None:
    commit = prepare_commit(a_run(), [lease_claimed(), started()], "commit-1")

    assert (commit.lease_token, commit.freed, commit.needs_expiry) == (None, (), False)


def test_a_step_that_makes_room_says_at_which_gates() -> None:
    run = a_run(Status.RUNNING, concurrency_key="tenant")

    commit = prepare_commit(run, [succeeded()], "commit-1")

    assert commit.freed == (Gate(LimitScope.KEY, run.task, "tenant"),)


def test_a_heartbeat_keeps_the_lease() -> None:
    commit = prepare_commit(a_run(Status.RUNNING), [lease_heartbeat()], "commit-1")

    assert (commit.lease_token, commit.freed) == (TOKEN, ())


def test_recovery_rests_on_the_expiry_of_the_lease() -> None:
    event = delivery_requested(at=after(60))

    commit = prepare_commit(a_run(Status.RUNNING), [event], "commit-1", pushed_queues={QUEUE})

    assert commit.needs_expiry is True
    assert commit.effects.outbox == (event.delivery,)


@pytest.mark.parametrize("build", [cancelled, retry_scheduled])
def test_what_the_system_ends_rests_on_expiry_and_what_the_holder_ends_does_not(
    build: Builder,
) -> None:
    run = a_run(Status.CANCELLATION_REQUESTED)
    worker = lease_heartbeat().actor

    assert rests_on_expiry(run, [build(actor=SYSTEM)])
    assert rests_on_expiry(run, [build(actor=OPERATOR)])
    assert not rests_on_expiry(run, [build(actor=worker)])


def test_asking_for_a_cancellation_rests_on_nothing() -> None:
    assert not rests_on_expiry(a_run(Status.RUNNING), [cancellation_requested()])
    assert not rests_on_expiry(a_run(), [cancelled()])


def test_a_replay_closes_the_dead_letter_in_the_same_commit() -> None:
    closed = close_dead_letter(
        a_run(Status.DEAD_LETTERED), DeadLetterStatus.REPLAYED, OPERATOR, after(9), a_run().id
    )

    commit = prepare_commit(None, history(), "commit-1", dead_letter_closed=closed)

    assert commit.effects == Effects(dead_letter_closed=closed)


def test_an_impossible_step_is_not_prepared() -> None:
    with pytest.raises(InvariantViolation):
        prepare_commit(a_run(Status.SUCCEEDED), [cancelled()], "commit-1")


def test_a_claim_over_ones_own_lease_rests_on_its_expiry_too() -> None:
    assert rests_on_expiry(a_run(Status.RUNNING), [lease_claimed(at=after(60), token="other")])
