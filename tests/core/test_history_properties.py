"""What holds of every legal history, whoever made it and however it is cut or stored."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import BUILDERS
from histories import ACTIONS, Driver, History, histories, whole_lives
from perdure.core.invariants import (
    CommittedStep,
    check_history,
    check_run,
    check_step,
    differences,
)
from perdure.core.run.attempts import AttemptStatus, derive_attempts
from perdure.core.run.codec import decode_events, encode_events, encode_state, restore
from perdure.core.run.effects import consequences
from perdure.core.run.events import RunLeaseClaimed
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.reducer import apply, project, replay
from perdure.core.run.run import STATE_FIELDS
from perdure.errors import InvariantViolation, LeaseLost, NotAllowed


@given(histories(), st.data())
def test_any_split_into_appends_gives_the_same_run(history: History, data: st.DataObject) -> None:
    events = history.events
    cuts = data.draw(st.sets(st.integers(1, len(events) - 1)) if events[1:] else st.just(set()))

    run = None
    for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), len(events)], strict=True):
        run = project(run, events[low:high], low)

    assert run == replay(events)


@given(histories())
def test_replay_equals_what_is_stored_but_for_unrecorded_renewals(history: History) -> None:
    assert history.steps[-1].after == replay(history.events)
    assert differences(history.run, replay(history.events)) == []


@given(histories())
def test_events_and_state_come_back_from_their_text(history: History) -> None:
    run, stored = history.run, tuple(history.events)

    assert decode_events(encode_events(stored)) == stored
    for step in history.steps:
        assert decode_events(encode_events(step.events)) == tuple(step.events)
    expiry = None if run.lease is None else run.lease.expires_at
    restored = restore(decode_events(encode_events(stored))[0], encode_state(run), expiry)
    assert restored == run
    assert encode_state(restored) == encode_state(run)


@given(histories())
def test_the_invariants_hold_at_every_step(history: History) -> None:
    seen = []
    for step in history.steps:
        seen += step.events
        assert check_run(step.after) == []
        assert check_history(step.after, seen) == []
        if step.before is not None:
            now = step.events[0].occurred_at
            assert check_step(CommittedStep(step.before, step.events, step.after, now)) == []


@given(whole_lives())
def test_nothing_follows_a_terminal_event(history: History) -> None:
    run = history.run
    target = {"run_id": run.id, "environment": run.environment, "at": run.updated_at}

    for build in BUILDERS.values():
        with pytest.raises(InvariantViolation):
            apply(run, build(**target))


@given(histories())
def test_attempts_agree_with_the_counters(history: History) -> None:
    run, attempts = replay(history.events), derive_attempts(history.events)
    ended = Counter(attempt.status for attempt in attempts)

    assert [attempt.number for attempt in attempts] == list(range(1, run.counters.attempts + 1))
    assert ended[AttemptStatus.RETRYING] == run.counters.retries
    assert ended[AttemptStatus.RELEASED] == run.counters.releases
    assert ended[AttemptStatus.SUCCEEDED] == (run.status is Status.SUCCEEDED)
    open_attempt = run.lease is not None and run.lease.attempt is not None
    assert ended[AttemptStatus.RUNNING] == open_attempt
    failures = ended[AttemptStatus.RETRYING] + ended[AttemptStatus.FAILED]
    assert run.counters.failures - failures in (0, 1)
    assert not any(a.status is AttemptStatus.RUNNING for a in attempts[:-1])


@given(histories())
def test_sequence_time_and_fence_only_grow(history: History) -> None:
    events, run = history.events, replay(history.events)
    claims = [event for event in events if isinstance(event, RunLeaseClaimed)]

    assert run.sequence == len(events)
    assert [e.occurred_at for e in events] == sorted(e.occurred_at for e in events)
    assert run.counters.claims == len(claims)
    assert run.lease is None or run.lease.fence == len(claims)


@given(histories())
def test_only_what_storage_keeps_beside_the_history_changes(history: History) -> None:
    first, run = history.steps[0].after, history.run

    for name in set(run.__struct_fields__) - set(STATE_FIELDS):
        assert getattr(first, name) == getattr(run, name), name


@given(histories())
def test_keys_are_taken_once_and_freed_once(history: History) -> None:
    effects = [consequences(step.after, step.events) for step in history.steps]

    assert all(not effect.keys_taken for effect in effects[1:])
    assert all(not effect.keys_freed for effect in effects[:-1])
    freed = {item.key for item in effects[-1].keys_freed}
    assert freed <= set(effects[0].keys_taken)
    dead = [effect for effect in effects if effect.dead_letter is not None]
    assert len(dead) == (history.run.status is Status.DEAD_LETTERED)


@given(histories(), st.data())
def test_what_a_decision_answers_is_never_impossible(history: History, data: st.DataObject) -> None:
    run = history.run
    driver = Driver(data.draw, data.draw(st.randoms(use_true_random=True)), run.updated_at)
    driver.pass_time(run)

    for action in ACTIONS:
        try:
            events = action(driver, run)
        except (NotAllowed, LeaseLost):
            continue
        if events:
            assert check_run(project(run, events, run.sequence)) == []


def test_the_histories_come_by_every_status_and_every_event() -> None:
    statuses: set[Status] = set()
    events: set[EventType] = set()

    @settings(max_examples=300, derandomize=True, database=None)
    @given(histories())
    def walk(history: History) -> None:
        statuses.update(step.after.status for step in history.steps)
        events.update(event.type for event in history.events)

    walk()
    assert (statuses, events) == (set(Status), set(EventType))
