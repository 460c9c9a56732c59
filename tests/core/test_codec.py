"""Events and state to text and back. The golden files are format 1, and must never change."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import (
    BUILDERS,
    DELAY,
    T0,
    a_failure,
    a_policy,
    a_run,
    after,
    awaiting,
    created,
    delivery_requested,
    history,
    started,
    then,
)
from perdure.core.run import codec
from perdure.core.run.backoff import Backoff, BackoffKind
from perdure.core.run.codec import FORMAT, decode_events, encode_events, encode_state, restore
from perdure.core.run.events import Event, RunCreated
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.reducer import replay
from perdure.core.run.run import OnExhausted, OnLeaseExpired, Policy, Run, Source, SourceType
from perdure.errors import UnreadableHistory

GOLDEN = Path(__file__).parent / "golden"

EVIDENCE: dict[str, Any] = {"execution_trace": {"spans": [1, 2]}, "output": {"log": "hello\n"}}
TIMED_OUT = a_failure(
    "took 30 s", FailureKind.TIMEOUT, traceback="File x", retryable=False, details={"limit": 30}
)
POLICY = a_policy(
    max_attempts=5,
    backoff=Backoff(kind=BackoffKind.LIST, delays=(DELAY, 2 * DELAY), spread=0.1),
    timeout=timedelta(minutes=5, milliseconds=1),
    lease_ttl=timedelta(seconds=45),
    on_lease_expired=OnLeaseExpired.REDELIVER,
    on_exhausted=OnExhausted.DEAD_LETTER,
    poison_threshold=3,
    max_abandons=4,
    max_returns=9,
    record_heartbeats=True,
    idempotency_ttl=timedelta(days=7),
)
FULL: dict[EventType, dict[str, Any]] = {
    EventType.CREATED: {
        "payload_json": msgspec.Raw(b'{"n": 1.10, "big":123456789012345678901234567890}'),
        "policy": POLICY,
        "priority": 3,
        "run_at": after(60),
        "source": Source(
            type=SourceType.SCHEDULE, schedule_id="nightly", nominal_time=T0, reason="cadence"
        ),
        "occurrence_key": "nightly:2026-03-01T12:00:00Z",
        "parent_id": "run_parent",
        "root_id": "run_root",
        "continuation_of": "run_before",
        "lineage_depth": 2,
        "batch_id": "batch",
        "concurrency_key": "tenant",
        "idempotency_key": "once",
        "singleton_key": "alone",
        "tags": {"colour": "blau"},
        "meta": {"nested": [1, {"ü": None}]},
        "expires_at": after(900.000001),
        "task_version": 4,
        "debug": True,
        "trace_carrier": {"traceparent": "00-1"},
    },
    EventType.DELIVERY_REQUESTED: {
        "delivery": {"dispatch_expires_at": after(30), "trace_carrier": {"traceparent": "00-2"}},
        "trace_carrier": {"traceparent": "00-3"},
    },
    EventType.LEASE_CLAIMED: {"meta": {"region": "eu"}},
    EventType.LEASE_HEARTBEAT: {"lease_expires_at": after(90)},
    EventType.LEASE_RETURNED: {"run_at": after(5), "reason": "shutdown"},
    EventType.STARTED: {"lease_expires_at": after(60)},
    EventType.SUCCEEDED: {"result_json": msgspec.Raw(b"null"), **EVIDENCE},
    EventType.FAILED: {"failure": TIMED_OUT, "reason": "returned_too_often", **EVIDENCE},
    EventType.DEAD_LETTERED: {"failure": TIMED_OUT, "reason": "poison", **EVIDENCE},
    EventType.RETRY_SCHEDULED: {"retry_at": after(60), **EVIDENCE},
    EventType.RELEASED: {
        "awaiting": awaiting("paid", after(99)), "resume_at": None, "reason": "waits", **EVIDENCE,
    },
    EventType.CANCELLATION_REQUESTED: {"reason": "wrong"},
    EventType.CANCELLED: {"reason": "wrong", **EVIDENCE},
    EventType.EXPIRED: {},
    EventType.SKIPPED: {"reason": "overlap"},
    EventType.PAUSED: {"reason": "holiday"},
    EventType.RESUMED: {},
    EventType.RESCHEDULED: {"run_at": after(5), "priority": 2, "queue": "slow", "reason": "calm"},
}  # fmt: skip


def full(event: EventType) -> Event:
    return BUILDERS[event](**FULL[event])


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.json").read_text().rstrip("\n")


@pytest.mark.parametrize("event", EventType)
def test_a_golden_event_is_read_exactly_and_written_again_alike(event: EventType) -> None:
    text = golden(event)

    assert decode_events(text) == (full(event),)
    assert encode_events(decode_events(text)) == text


def test_the_golden_history_replays_to_the_same_run() -> None:
    events = history(Status.SUCCEEDED)

    assert decode_events(golden("history")) == tuple(events)
    assert encode_events(events) == golden("history")


def test_every_golden_file_is_read_by_some_test() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*EventType, "history"}


def test_text_may_be_bytes_and_payloads_stay_as_they_were() -> None:
    [event] = decode_events(golden(EventType.CREATED).encode())

    assert isinstance(event, RunCreated)
    assert bytes(event.payload_json) == b'{"n": 1.10, "big":123456789012345678901234567890}'


def test_a_policy_is_stored_as_far_as_it_is_unusual() -> None:
    policy = a_policy(max_attempts=5, backoff=Backoff(factor=3.0))
    text = encode_events([created(policy=policy)])
    [event] = json.loads(text)["events"]

    assert set(event["policy"]) == {"max_attempts", "backoff"}
    assert set(event["policy"]["backoff"]) == set(Backoff().__struct_fields__)
    assert decode_events(text) == (created(policy=policy),)


def test_what_a_stored_policy_leaves_out_means_the_same_for_ever() -> None:
    [event, *_] = decode_events(golden("history"))

    assert isinstance(event, RunCreated)
    assert event.policy == Policy(
        max_attempts=3,
        backoff=Backoff(
            kind=BackoffKind.EXPONENTIAL,
            initial=timedelta(seconds=1),
            factor=2.0,
            maximum=timedelta(hours=1),
            spread=0.2,
            delays=(),
        ),
        timeout=None,
        lease_ttl=None,
        on_lease_expired=OnLeaseExpired.RETRY,
        on_exhausted=None,
        poison_threshold=None,
        max_abandons=10,
        max_returns=50,
        record_heartbeats=False,
        idempotency_ttl=timedelta(days=30),
    )


def test_a_missing_result_differs_from_null() -> None:
    for result in (msgspec.UNSET, msgspec.Raw(b"null"), msgspec.Raw(b'{"a": [1]}')):
        event = BUILDERS[EventType.SUCCEEDED](result_json=result)
        assert decode_events(encode_events([event])) == (event,)


def from_format_0(objects: codec.Objects) -> codec.Objects:
    """A made-up older format, in which a task was called a job."""
    return [
        {"task" if key == "job" else key: value for key, value in item.items()} for item in objects
    ]


OLD = golden(EventType.CREATED).replace('"v":1', '"v":0').replace('"task":', '"job":')


def test_an_older_format_is_read_through_its_upcaster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.UPCASTERS, 0, from_format_0)

    assert decode_events(OLD) == (full(EventType.CREATED),)


def test_a_chain_of_upcasters_goes_one_format_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(codec.UPCASTERS, -1, from_format_0)
    monkeypatch.setitem(codec.UPCASTERS, 0, lambda objects: objects)

    assert decode_events(OLD.replace('"v":0', '"v":-1')) == (full(EventType.CREATED),)


@pytest.mark.parametrize("rest", ['"events":[]', '"events":{"other":"shape"}', '"commits":[1]'])
def test_a_newer_format_is_refused_with_advice(rest: str) -> None:
    with pytest.raises(UnreadableHistory, match="format 2, this code reads up to 1: upgrade"):
        decode_events(f'{{"v":{FORMAT + 1},{rest}}}')


GOOD = golden(EventType.LEASE_CLAIMED)
DAMAGED = [
    "",
    "{",
    "[]",
    '{"v":1}',
    '{"v":1,"events":null}',
    '{"v":"1","events":[]}',
    '{"v":1,"events":[{}]}',
    '{"v":0,"events":[]}',
    "\ud800",
    GOOD[:-5],
    GOOD.replace("run.lease_claimed", "run.unheard_of"),
    GOOD.replace('"token"', '"tokem"'),
    GOOD.replace("2026-03-01", "2026-13-01"),
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(UnreadableHistory, match="cannot read a stored event: it is damaged"):
        decode_events(text)


def first_event(run: Run) -> RunCreated:
    """The creation that `a_run` began with, read off the run."""
    return created(run_at=run.requested_at, expires_at=run.expires_at)


@pytest.mark.parametrize("status", Status)
def test_state_and_first_event_give_the_run_back(status: Status) -> None:
    run = a_run(status)
    expiry = None if run.lease is None else run.lease.expires_at

    assert restore(first_event(run), encode_state(run), expiry) == run
    assert restore(first_event(run), encode_state(run).encode(), None) == run


def test_a_state_with_everything_in_it_is_restored() -> None:
    wish = {"dispatch_expires_at": after(30), "trace_carrier": {"t": "1"}}
    run = then(replay([full(EventType.CREATED)]), delivery_requested(at=after(60), delivery=wish))

    assert restore(full(EventType.CREATED), encode_state(run), None) == run


def test_the_expiry_that_renewals_moved_counts() -> None:
    run = a_run(Status.RUNNING)
    assert run.lease is not None

    restored = restore(created(), encode_state(run), after(999))

    renewed = replace(run.lease, renewed_at=after(939), expires_at=after(999))
    assert restored == replace(run, lease=renewed)


def test_a_history_that_does_not_begin_with_its_creation_cannot_be_restored() -> None:
    with pytest.raises(UnreadableHistory, match="does not begin with its creation"):
        restore(started(), encode_state(a_run()), None)


@pytest.mark.parametrize("state", ["", "{}", "null", '{"queue":1}', "\ud800"])
def test_a_damaged_state_is_refused(state: str) -> None:
    with pytest.raises(UnreadableHistory, match="its state is damaged"):
        restore(created(), state, None)
