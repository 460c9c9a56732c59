"""What becomes true together with a run's events: keys, dead letters, outbox rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import (
    OPERATOR,
    QUEUE,
    RUN_ID,
    T0,
    TASK,
    a_policy,
    a_run,
    after,
    created,
    dead_lettered,
    delivery_requested,
    history,
    run_id,
    started,
    then,
)
from perdure.core.run.effects import (
    AT_ONCE,
    NO_EFFECTS,
    DeadLetter,
    DeadLetterClosed,
    DeadLetterStatus,
    Effects,
    Key,
    KeyFreed,
    KeyKind,
    close_dead_letter,
    consequences,
    freed_idempotency_key,
    payload_hash,
    standing_keys,
)
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import TERMINAL, Status
from perdure.core.run.reducer import replay

KEYS: dict[str, Any] = {
    "idempotency_key": "once",
    "singleton_key": "alone",
    "occurrence_key": "nightly:1",
}
ONCE = Key("default", KeyKind.IDEMPOTENCY, TASK, "once")
ALONE = Key("default", KeyKind.SINGLETON, TASK, "alone")
NIGHTLY = Key("default", KeyKind.OCCURRENCE, "", "nightly:1")


def last_step(status: Status, **fields: Any) -> Effects:
    """The consequences of the last event of a history that ends in `status`."""
    events = history(status, **fields)
    return consequences(replay(events), events[-1:])


def test_the_first_commit_takes_every_key() -> None:
    events = history(**KEYS)

    effects = consequences(replay(events), events)

    assert effects == Effects(keys_taken=(ONCE, ALONE, NIGHTLY))


def test_a_run_without_keys_takes_none() -> None:
    assert consequences(a_run(), [created()]) == NO_EFFECTS


def test_a_later_commit_takes_no_keys() -> None:
    run = a_run(Status.RUNNING, **KEYS)

    assert consequences(run, [started()]) is NO_EFFECTS


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_ended_run_frees_its_singleton_at_once_and_its_occurrence_never(status: Status) -> None:
    freed = {item.key: item.free_at for item in last_step(status, **KEYS).keys_freed}

    assert freed[ALONE] == AT_ONCE
    assert NIGHTLY not in freed


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_run_that_did_its_work_keeps_its_idempotency_key_for_its_time(status: Status) -> None:
    policy = a_policy(idempotency_ttl=timedelta(days=7))
    kept = status in (Status.SUCCEEDED, Status.CANCELLED)

    effects = last_step(status, policy=policy, idempotency_key="once")

    free_at = T0 + timedelta(days=7) if kept else AT_ONCE
    assert effects.keys_freed == (KeyFreed(ONCE, free_at),)


def test_nobody_may_take_a_live_runs_singleton_nor_any_runs_occurrence() -> None:
    assert standing_keys(a_run(Status.RUNNING, **KEYS)) == (ALONE, NIGHTLY)
    assert standing_keys(a_run(Status.SUCCEEDED, **KEYS)) == (NIGHTLY,)


def test_a_run_that_ends_in_its_first_commit_takes_and_frees() -> None:
    events = history(Status.SKIPPED, **KEYS)

    effects = consequences(replay(events), events)

    assert effects.keys_taken == (ONCE, ALONE, NIGHTLY)
    assert [item.key for item in effects.keys_freed] == [ONCE, ALONE]


def test_a_dead_letter_shows_the_payload_if_it_was_read() -> None:
    run = then(a_run(Status.RUNNING), dead_lettered(at=after(5), reason="poison"))
    letter = consequences(run, [dead_lettered(at=after(5), reason="poison")]).dead_letter
    assert letter is not None

    read = replace(letter, payload_json=run.payload_json)

    assert (letter.payload, read.payload) == (None, run.payload)


def test_a_dead_lettered_run_opens_a_dead_letter() -> None:
    run = then(a_run(Status.RUNNING, **KEYS), dead_lettered(at=after(5), reason="poison"))
    assert run.failure is not None

    effects = consequences(run, [dead_lettered(at=after(5), reason="poison")])

    assert effects.dead_letter == DeadLetter(
        run_id=RUN_ID,
        environment="default",
        task=TASK,
        queue=QUEUE,
        occurrence_key="nightly:1",
        reason="poison",
        failure_kind=FailureKind.ERROR,
        fingerprint=run.failure.fingerprint,
        message="boom",
        opened_at=after(5),
    )
    assert effects.dead_letter.status is DeadLetterStatus.OPEN


@pytest.mark.parametrize("status", sorted(TERMINAL - {Status.DEAD_LETTERED}))
def test_no_other_ending_opens_one(status: Status) -> None:
    assert last_step(status).dead_letter is None


def test_every_delivery_to_a_pushed_queue_is_one_outbox_row() -> None:
    event = delivery_requested(at=after(1))
    run = then(a_run(), event, event)

    effects = consequences(run, [event, event], pushed_queues={QUEUE})

    assert effects == Effects(outbox=(event.delivery, event.delivery))


def test_other_events_and_other_queues_yield_no_outbox_rows() -> None:
    event = delivery_requested()

    assert consequences(then(a_run(), event), [event], pushed_queues={"other"}) is NO_EFFECTS
    assert consequences(a_run(Status.RUNNING), [started()], pushed_queues={QUEUE}) is NO_EFFECTS


def test_a_dead_letter_is_closed_as_replayed_or_discarded() -> None:
    dead, replayed = a_run(Status.DEAD_LETTERED), a_run(run_id=run_id(2))

    closed = close_dead_letter(dead, DeadLetterStatus.REPLAYED, OPERATOR, after(9), replayed.id)
    thrown = close_dead_letter(dead, DeadLetterStatus.DISCARDED, OPERATOR, after(9))

    common: dict[str, Any] = {"run_id": RUN_ID, "closed_at": after(9), "closed_by": OPERATOR}
    assert closed == DeadLetterClosed(
        status=DeadLetterStatus.REPLAYED, replay_run_id=run_id(2), **common
    )
    assert thrown == DeadLetterClosed(status=DeadLetterStatus.DISCARDED, **common)


def test_equal_payloads_have_equal_hashes() -> None:
    other = a_run(payload_json=msgspec.Raw(b'{"to":"alan"}'))

    assert payload_hash(a_run()) == payload_hash(a_run(run_id=run_id(2)))
    assert payload_hash(a_run()) != payload_hash(other)


def test_an_idempotency_key_can_be_freed_before_its_time() -> None:
    run = a_run(idempotency_key="once", singleton_key="alone")

    assert [freed.key.name for freed in freed_idempotency_key(run)] == ["once"]
    assert freed_idempotency_key(a_run()) == ()
