"""What a webhook hears of, how far it has been told, when it is tried again and given up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import T0, a_failure, a_run, after
from perdure.core.run.backoff import Backoff
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.webhook import (
    Disabled,
    Endurance,
    Gap,
    Hold,
    Interest,
    Progress,
    Stretch,
    Trouble,
    WebhookState,
    check_interest,
    failed,
    missed,
    moved,
    state_of,
    taken,
    told,
    well,
)
from perdure.errors import InvalidInput

HERE = Progress(cursor="10")
DOWN = Trouble(why="it answered 500")
STEADY = Backoff(initial=timedelta(seconds=1), spread=0.0)
ENDURANCE = Endurance(backoff=STEADY, failures=3, time=timedelta(minutes=1))


# Interest


def test_everything_is_wanted_unless_events_are_named() -> None:
    assert all(Interest().wants(event) for event in EventType)

    some = Interest(events=("run.failed", "run.succeeded"))
    assert {e for e in EventType if some.wants(e)} == {EventType.FAILED, EventType.SUCCEEDED}


@pytest.mark.parametrize(
    ("interest", "concerned"),
    [
        (Interest(), True),
        (Interest(task="send_email"), True),
        (Interest(task="other"), False),
        (Interest(queue="default"), True),
        (Interest(queue="other"), False),
        (Interest(tag=("team", "red")), True),
        (Interest(tag=("team", "blue")), False),
        (Interest(tag=("colour", "red")), False),
        (Interest(status="failed"), True),
        (Interest(status="queued"), False),
        (Interest(status="timed_out"), True),
        (Interest(status="crashed"), False),
    ],
)
def test_a_run_concerns_it_if_every_filter_fits(interest: Interest, concerned: bool) -> None:
    failure = a_failure(kind=FailureKind.TIMEOUT)
    run = replace(a_run(Status.FAILED), tags={"team": "red"}, failure=failure)

    assert interest.concerns(run) is concerned


def test_a_kind_of_failure_is_looked_for_only_where_something_failed() -> None:
    odd = replace(a_run(Status.FAILED), failure=None)

    assert not Interest(status="timed_out").concerns(odd)


def test_what_may_still_change_does_not_rule_a_run_out() -> None:
    interest = Interest(queue="elsewhere", status="succeeded")

    assert interest.may_concern(a_run(Status.QUEUED))
    assert not interest.concerns(a_run(Status.QUEUED))


@pytest.mark.parametrize(
    ("interest", "field"),
    [
        (Interest(events=()), "events"),
        (Interest(events=("run.exploded",)), "events"),
        (Interest(task=""), "task"),
        (Interest(queue="\0"), "queue"),
        (Interest(tag=("", "x")), "tag"),
        (Interest(tag="team"), "tag"),  # type: ignore[arg-type]  # what people may give
        (Interest(status="dancing"), "status"),
    ],
)
def test_an_interest_that_nothing_could_meet_is_refused(interest: Interest, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_interest(interest)

    assert caught.value.field == field


def test_a_whole_interest_is_taken_as_it_is() -> None:
    whole = Interest(events=("run.*",), task="t", queue="q", tag=("team", ""), status="dead_letter")

    assert check_interest(whole) is whole
    assert check_interest(Interest()) == Interest()


# Whether and how it is


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, True),
        ({"next_try_at": after(1)}, False),
        ({"next_try_at": T0}, True),
        ({"hold": Hold("token", after(1))}, False),
        ({"hold": Hold("token", T0)}, True),
        ({"disabled": Disabled(T0, "gone")}, False),
    ],
)
def test_it_is_due_unless_something_stands_in_the_way(changes: dict[str, Any], due: bool) -> None:
    assert replace(HERE, **changes).is_due(T0) is due


def test_a_hold_is_known_by_its_token() -> None:
    held = taken(HERE, "mine", after(60))

    assert (held.is_held_by("mine"), held.is_held_by("another")) == (True, False)
    assert not HERE.is_held_by("mine")


def test_a_state_is_told_by_what_keeps_it_most() -> None:
    failing = replace(HERE, failures=1)
    disabled = replace(failing, disabled=Disabled(T0, "gone"))

    assert state_of(HERE, enabled=True) is WebhookState.ACTIVE
    assert state_of(failing, enabled=True) is WebhookState.FAILING
    assert state_of(failing, enabled=False) is WebhookState.PAUSED
    assert state_of(disabled, enabled=False) is WebhookState.DISABLED


# How far it has been told

STRETCH = Stretch(
    steps=(("11", ("a",)), ("12", ()), ("13", ("b", "c")), ("14", ("d",)), ("15", ())), end="15"
)


@pytest.mark.parametrize(
    ("delivered", "cursor", "done"),
    [
        ("abcd", "15", ""),
        ("abc", "13", ""),
        ("ab", "12", "b"),
        ("abd", "12", "bd"),
        ("bcd", "10", "bcd"),
        ("a", "12", ""),
        ("", "10", ""),
    ],
)
def test_the_cursor_passes_nothing_that_was_not_told(
    delivered: str, cursor: str, done: str
) -> None:
    progress = told(taken(HERE, "t", after(9)), STRETCH, delivered, 4, T0)

    assert (progress.cursor, "".join(progress.done)) == (cursor, done)
    assert (progress.posts, progress.hold) == (4, None)
    assert progress.delivered_at == (T0 if delivered else None)


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=6),
    st.lists(st.sets(st.integers(0, 30)), max_size=4),
)
def test_however_it_is_told_piece_by_piece_nothing_is_lost(
    calls: list[list[int]], pieces: list[set[int]]
) -> None:
    steps = tuple(
        (str(n), tuple(f"{n}-{index}" for index, _ in enumerate(call)))
        for n, call in enumerate(calls, 11)
    )
    all_ids = [message for _, messages in steps for message in messages]
    progress, sent = HERE, set[str]()
    for piece in pieces:
        rest = tuple(step for step in steps if int(step[0]) > int(progress.cursor))
        if not rest:
            break
        posted = {all_ids[i] for i in piece if i < len(all_ids)}
        sent |= posted
        progress = told(progress, Stretch(steps=rest, end=rest[-1][0]), posted, 1, T0)
        behind = {m for place, ms in steps if int(place) <= int(progress.cursor) for m in ms}
        assert behind | set(progress.done) == sent | behind
        assert behind <= sent


# Failing


def test_each_failure_waits_longer_and_says_why() -> None:
    once = failed(HERE, DOWN, ENDURANCE, T0, 0.0)
    twice = failed(once, Trouble(why="no answer"), ENDURANCE, after(1), 0.0)

    assert (once.failures, once.next_try_at, once.why) == (1, after(1), "it answered 500")
    assert (twice.failures, twice.next_try_at, twice.why) == (2, after(3), "no answer")
    assert (once.failing_since, twice.failing_since) == (T0, T0)


def test_an_endpoint_may_ask_for_more_time_and_not_for_less() -> None:
    patient = failed(HERE, replace(DOWN, retry_after=timedelta(minutes=5)), ENDURANCE, T0, 0.0)
    hasty = failed(HERE, replace(DOWN, retry_after=timedelta(0)), ENDURANCE, T0, 0.0)

    assert (patient.next_try_at, hasty.next_try_at) == (after(300), after(1))


def test_it_is_given_up_only_after_enough_failures_over_enough_time() -> None:
    twice = replace(HERE, failures=2, failing_since=T0)

    many_soon = failed(twice, DOWN, ENDURANCE, after(59), 0.0)
    few_late = failed(replace(twice, failures=1), DOWN, ENDURANCE, after(60), 0.0)
    many_late = failed(twice, DOWN, ENDURANCE, after(60), 0.0)

    assert (many_soon.disabled, few_late.disabled) == (None, None)
    why = f"3 failures in a row since {T0}: it answered 500"
    assert many_late.disabled == Disabled(after(60), why)
    assert many_late.next_try_at is None


def test_who_says_that_it_is_gone_is_believed_at_once() -> None:
    gone = failed(HERE, Trouble(why="it answered 410", is_gone=True), ENDURANCE, T0, 0.0)

    assert gone.disabled == Disabled(T0, "it answered 410")


def test_a_success_or_an_operator_makes_it_well() -> None:
    gone = failed(HERE, Trouble(why="gone", is_gone=True), ENDURANCE, T0, 0.0)

    assert well(gone) == HERE


# Another place


def test_a_replay_forgets_what_was_told_and_overtakes_whoever_sends() -> None:
    held = taken(replace(HERE, done=("a",), failures=3, posts=9), "t", after(9))

    assert moved(held, "3", T0) == Progress(cursor="3", not_before=T0, posts=9)


def test_a_gap_keeps_its_beginning_and_grows() -> None:
    once = missed(HERE, "10", "20", T0)
    twice = missed(once, "15", "30", after(60))

    assert once.gap == Gap(T0, "10", "20")
    assert twice.gap == Gap(T0, "10", "30")
    assert moved(twice, "30").gap is None
