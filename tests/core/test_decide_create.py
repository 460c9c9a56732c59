"""Triggers make runs, operators rerun and retry them; what cannot be kept is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from builders import (
    CLIENT,
    OPERATOR,
    RUN_ID,
    T0,
    TASK,
    a_policy,
    a_run,
    after,
    cancelled,
    rescheduled,
    run_id,
    then,
)
from perdure.core.decide import (
    NewRun,
    continuing,
    decide_alike,
    decide_create,
    decide_rerun,
    decide_retry,
    timeless,
)
from perdure.core.decide.create import MAX_LINEAGE, MAX_META, MAX_TAGS
from perdure.core.run.lifecycle import TERMINAL, Status
from perdure.core.run.reducer import replay
from perdure.core.run.run import Policy, Run, Source, SourceType
from perdure.errors import InvalidInput, NotAllowed, RunNotFound

AGAIN = run_id(2)
HOUR = timedelta(hours=1)


def create(dispatch: bool = False, **fields: Any) -> Run:
    new = NewRun(**({"task": TASK} | fields))
    return replay(decide_create(new, RUN_ID, CLIENT, T0, dispatch=dispatch))


def test_a_trigger_makes_a_queued_run_with_one_event() -> None:
    run = create()

    assert (run.status, run.sequence, run.created_by) == (Status.QUEUED, 1, CLIENT)
    assert (run.payload, run.queue, run.policy) == (None, "default", a_policy())


def test_a_trigger_for_later_is_scheduled_from_the_first_commit() -> None:
    run = create(run_at=after(60), queue="slow", environment="prod")

    assert (run.status, run.run_at, run.sequence) == (Status.SCHEDULED, after(60), 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "mail", "priority": 3, "tags": {"a": "b"}, "meta": {"c": 1}, "batch_id": "x"},
        {"run_at": after(60), "ttl": HOUR, "trace_carrier": {"traceparent": "00"}},
        {"root_id": run_id(9), "parent_id": run_id(9), "concurrency_key": "k", "task_version": 2},
    ],
)
def test_a_run_alike_is_what_it_would_be_if_decided_by_itself(fields: dict[str, Any]) -> None:
    payload = msgspec.Raw(b'{"n":2}')
    first = decide_create(NewRun(task=TASK, **fields), RUN_ID, CLIENT, T0)
    by_itself = NewRun(task=TASK, payload_json=payload, **fields)

    alike = decide_alike(first, AGAIN, payload, T0)

    assert replay(alike) == replay(decide_create(by_itself, AGAIN, CLIENT, T0))


def test_a_timeless_run_may_be_made_alike_at_another_time() -> None:
    payload, later = msgspec.Raw(b"[]"), T0 + HOUR
    first = decide_create(NewRun(task=TASK), RUN_ID, CLIENT, T0)

    alike = decide_alike(first, AGAIN, payload, later)

    assert timeless(first)
    by_itself = NewRun(task=TASK, payload_json=payload)
    assert alike == decide_create(by_itself, AGAIN, CLIENT, later)


@pytest.mark.parametrize("fields", [{"ttl": HOUR}, {"run_at": after(60)}, {"run_at": T0}])
def test_what_counts_from_its_trigger_is_not_timeless(fields: dict[str, Any]) -> None:
    assert not timeless(decide_create(NewRun(task=TASK, **fields), RUN_ID, CLIENT, T0))


@pytest.mark.parametrize("run_at", [T0, T0 - HOUR, None])
def test_a_trigger_for_now_needs_no_delivery(run_at: Any) -> None:
    run = create(run_at=run_at)

    assert (run.status, run.sequence, run.run_at) == (Status.QUEUED, 1, run_at)


@pytest.mark.parametrize(("run_at", "due"), [(None, T0), (T0 - HOUR, T0), (after(9), after(9))])
def test_a_pushed_queue_gets_a_delivery_at_once(run_at: Any, due: datetime) -> None:
    run = create(dispatch=True, run_at=run_at)

    assert (run.sequence, run.run_at, run.dispatch_expires_at) == (2, due, None)


def test_everything_that_was_asked_for_is_in_the_run() -> None:
    new = NewRun(
        task=TASK,
        payload_json=msgspec.Raw(b"[1]"),
        environment="prod",
        queue="slow",
        policy=a_policy(max_attempts=7),
        priority=3,
        run_at=T0,
        source=Source(type=SourceType.SPAWN, run_id=run_id(11)),
        occurrence_key="s:1",
        parent_id=run_id(11),
        root_id=run_id(12),
        continuation_of=run_id(13),
        lineage_depth=2,
        batch_id="b",
        concurrency_key="c",
        idempotency_key="i",
        singleton_key="s",
        tags={"a": "b"},
        meta={"m": [1]},
        task_version=2,
        debug=True,
        trace_carrier={"t": "1"},
    )
    run = replay(decide_create(new, RUN_ID, CLIENT, T0))

    for name in set(new.__struct_fields__) - {"ttl"}:
        assert getattr(run, name) == getattr(new, name), name


@pytest.mark.parametrize(
    ("run_at", "expiry"),
    [(None, T0 + HOUR), (T0 - HOUR, T0 + HOUR), (T0 + HOUR, T0 + 2 * HOUR)],
)
def test_time_to_live_counts_from_when_the_run_is_first_due(run_at: Any, expiry: datetime) -> None:
    assert create(ttl=HOUR, run_at=run_at).expires_at == expiry
    assert create(run_at=run_at).expires_at is None


LONG = "x" * 257
BAD: list[tuple[str, dict[str, Any]]] = [
    ("task", {"task": ""}),
    ("task", {"task": 3}),
    ("environment", {"environment": "a\nb"}),
    ("queue", {"queue": LONG}),
    ("concurrency_key", {"concurrency_key": "\x00"}),
    ("idempotency_key", {"idempotency_key": "\ud800"}),
    ("singleton_key", {"singleton_key": ""}),
    ("batch_id", {"batch_id": LONG}),
    ("occurrence_key", {"occurrence_key": LONG * 2}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 11}),
    ("priority", {"priority": 5.0}),
    ("priority", {"priority": True}),
    ("ttl", {"ttl": timedelta(0)}),
    ("ttl", {"ttl": timedelta(seconds=-1)}),
    ("ttl", {"ttl": timedelta.max}),
    ("run_at", {"run_at": datetime(2026, 3, 1)}),  # noqa: DTZ001 - the naive one is the point
    ("tags", {"tags": {str(n): "x" for n in range(MAX_TAGS + 1)}}),
    ("tags", {"tags": {"": "x"}}),
    ("tags.colour", {"tags": {"colour": ""}}),
    ("tags.colour", {"tags": {"colour": 3}}),
    ("meta", {"meta": {"x": float("nan")}}),
    ("meta", {"meta": {"x": "y" * MAX_META}}),
    ("trace_carrier", {"trace_carrier": {"x": "\ud800"}}),
]


@pytest.mark.parametrize(("field", "fields"), BAD)
def test_a_bad_value_is_refused_by_the_name_of_its_field(
    field: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        create(**fields)

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("bad", ["", "run_1", "run_" + "G" * 32, RUN_ID + "0", RUN_ID.upper()])
def test_a_malformed_run_id_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match=r"run_id: .* is not run_ and 32 hexadecimal digits"):
        decide_create(NewRun(task=TASK), bad, CLIENT, T0)


def test_values_at_their_limits_are_kept() -> None:
    run = create(
        task="x" * 256,
        priority=10,
        occurrence_key="x" * 512,
        tags={str(n): "x" for n in range(MAX_TAGS)},
        run_at=datetime(2026, 3, 1, tzinfo=UTC),
    )

    assert (run.priority, len(run.tags)) == (10, MAX_TAGS)


@pytest.mark.parametrize("status", Status)
def test_any_ended_run_and_no_other_can_be_rerun(status: Status) -> None:
    run = a_run(status)
    if status in TERMINAL:
        [event] = decide_rerun(run, AGAIN, OPERATOR, after(9999), reason="again")
        source = replay([event]).source
        assert source == Source(type=SourceType.RERUN, run_id=run.id, reason="again")
        return

    with pytest.raises(NotAllowed, match=f"cannot rerun run {run.id} while it is {status}"):
        decide_rerun(run, AGAIN, OPERATOR, after(9999))


@pytest.mark.parametrize("status", Status)
def test_only_failed_and_dead_lettered_runs_can_be_retried(status: Status) -> None:
    run = a_run(status)
    if status in (Status.FAILED, Status.DEAD_LETTERED):
        [event] = decide_retry(run, AGAIN, OPERATOR, after(9999), reason="fixed")
        source = replay([event]).source
        assert source == Source(type=SourceType.MANUAL_RETRY, run_id=run.id, reason="fixed")
        return

    with pytest.raises(NotAllowed, match="rerun any other ended run"):
        decide_retry(run, AGAIN, OPERATOR, after(9999))


def ended(**fields: Any) -> Run:
    return a_run(Status.FAILED, **fields)


def rerun(run: Run, **more: Any) -> Run:
    return replay(decide_rerun(run, AGAIN, OPERATOR, after(9999), **more))


def test_a_rerun_copies_everything_but_what_belongs_to_the_original_alone() -> None:
    run = ended(
        environment="prod",
        parent_id=run_id(11),
        root_id=run_id(12),
        continuation_of=run_id(13),
        batch_id="b",
        lineage_depth=2,
        concurrency_key="c",
        idempotency_key="once",
        singleton_key="alone",
        tags={"a": "b"},
        meta={"m": 1},
        priority=4,
        policy=a_policy(max_attempts=9),
        task_version=3,
        debug=True,
        trace_carrier={"t": "1"},
    )
    new = rerun(run)

    changed = {name for name in run.__struct_fields__ if getattr(run, name) != getattr(new, name)}
    assert changed == {
        "id", "source", "idempotency_key", "batch_id", "continuation_of", "lineage_depth",
        "created_by", "created_at", "status", "sequence",
        "updated_at", "counters", "started_at", "finished_at", "failure", "streak",
    }  # fmt: skip
    assert (new.idempotency_key, new.batch_id, new.continuation_of) == (None, None, None)
    assert (new.id, new.created_by, new.created_at) == (AGAIN, OPERATOR, after(9999))


def test_a_rerun_starts_at_once_with_the_lifetime_of_the_old_run() -> None:
    new = rerun(ended(expires_at=after(900)))
    late = rerun(ended(run_at=T0, expires_at=after(300)))

    assert (new.run_at, new.expires_at) == (None, after(9999 + 900))
    assert late.expires_at == after(9999 + 300)


def test_a_rerun_counts_the_lifetime_from_when_the_old_run_was_due() -> None:
    expired = a_run(Status.EXPIRED, run_at=after(600), expires_at=after(700))

    assert rerun(expired).expires_at == after(9999 + 100)


def test_a_rerun_goes_to_the_queue_the_run_was_moved_to() -> None:
    moved = then(a_run(), rescheduled(queue="slow"), cancelled())

    assert rerun(moved).queue == "slow"


def test_a_rerun_may_have_another_payload() -> None:
    new = rerun(ended(), payload_json=msgspec.Raw(b'{"to":"alan"}'))

    assert (new.payload, rerun(ended()).payload) == ({"to": "alan"}, {"to": "ada"})


def test_the_rerun_of_an_occurrence_keeps_its_schedule_but_not_its_key() -> None:
    source = Source(type=SourceType.SCHEDULE, schedule_id="nightly", nominal_time=T0)
    new = rerun(ended(source=source, occurrence_key="nightly:2026-03-01T12:00:00Z"))

    assert (new.schedule_id, new.occurrence_key) == ("nightly", f"manual:{AGAIN}")
    assert rerun(ended()).occurrence_key is None


def test_a_rerun_never_lies_before_the_run_it_repeats() -> None:
    run = a_run(Status.EXPIRED)

    [event] = decide_rerun(run, AGAIN, OPERATOR, T0)

    assert event.occurred_at == run.updated_at


@pytest.mark.parametrize("decide", [decide_rerun, decide_retry])
def test_a_run_made_again_on_a_pushed_queue_is_dispatched(decide: Any) -> None:
    events = decide(a_run(Status.FAILED), AGAIN, OPERATOR, after(5), dispatch=True)

    assert [event.type for event in events] == ["run.created", "run.delivery_requested"]


def test_a_reason_of_any_text_can_be_kept() -> None:
    [event] = decide_rerun(a_run(Status.FAILED), AGAIN, OPERATOR, after(5), reason="because \ud800")

    assert replay([event]).source.reason == "because ?"


def test_what_could_not_be_read_back_is_never_stored() -> None:
    with pytest.raises(InvalidInput, match="cannot be kept"):
        decide_create(NewRun(task=TASK, trace_carrier={"a": 1}), RUN_ID, CLIENT, T0)  # type: ignore[dict-item]  # the point


@pytest.mark.parametrize("field", ["parent_id", "root_id", "continuation_of"])
def test_links_must_be_run_ids(field: str) -> None:
    with pytest.raises(InvalidInput, match="not the id of a run") as refused:
        decide_create(NewRun(task=TASK, **{field: "mom"}), RUN_ID, CLIENT, T0)  # type: ignore[arg-type]  # by name

    assert refused.value.field == field


def test_a_schedule_id_must_be_a_label() -> None:
    source = Source(type=SourceType.SCHEDULE, schedule_id="night\x00ly")

    with pytest.raises(InvalidInput, match=r"source\.schedule_id"):
        decide_create(NewRun(task=TASK, source=source), RUN_ID, CLIENT, T0)


def test_an_instant_beyond_the_calendar_is_refused() -> None:
    late = datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12)))

    with pytest.raises(InvalidInput, match="beyond the calendar"):
        decide_create(NewRun(task=TASK, run_at=late), RUN_ID, CLIENT, T0)


@pytest.mark.parametrize("policy", [a_policy(max_attempts=-1), a_policy(poison_threshold=0)])
def test_a_policy_is_checked_at_the_door(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match="policy"):
        decide_create(NewRun(task=TASK, policy=policy), RUN_ID, CLIENT, T0)


def test_a_policys_durations_are_bounded() -> None:
    with pytest.raises(InvalidInput, match=r"policy\.lease_ttl"):
        decide_create(
            NewRun(task=TASK, policy=a_policy(lease_ttl=timedelta.max)), RUN_ID, CLIENT, T0
        )


def test_a_continuation_is_one_deeper_and_keeps_the_root() -> None:
    first = create(root_id=run_id(7))

    events = decide_create(continuing(NewRun(task=TASK), first), AGAIN, CLIENT, T0)

    run = replay(events)
    assert (run.continuation_of, run.lineage_depth, run.root_id) == (first.id, 1, run_id(7))
    assert (run.source.type, run.source.run_id) == (SourceType.CONTINUATION, first.id)


def test_a_run_continues_none_of_another_environment() -> None:
    first = create(environment="prod")

    with pytest.raises(RunNotFound):
        continuing(NewRun(task=TASK, environment="test"), first)


def test_a_lineage_ends_somewhere() -> None:
    deep = create(lineage_depth=MAX_LINEAGE)

    with pytest.raises(InvalidInput, match="10 continuations deep"):
        continuing(NewRun(task=TASK), deep)
