"""How many at once: who gets the room there is."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from builders import DELAY, QUEUE, T0, TASK, a_run, after, delivery_requested, run_id, then
from perdure.core.limits.admission import (
    Gate,
    LimitScope,
    Rule,
    Standing,
    admit,
    freed_gates,
    gates_of,
    held_gates,
)
from perdure.core.limits.rates import Pace
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Source, SourceType

IN_QUEUE = Gate(LimitScope.QUEUE, QUEUE)
OF_TASK = Gate(LimitScope.TASK, TASK)
OF_KEY = Gate(LimitScope.KEY, TASK, "tenant")
OF_SCHEDULE = Gate(LimitScope.SCHEDULE, "nightly")
NIGHTLY = Source(type=SourceType.SCHEDULE, schedule_id="nightly")

RUNS = [a_run(run_id=run_id(n), concurrency_key="tenant") for n in range(3)]
HOURLY = Pace(timedelta(hours=1), 2)


def standing(
    *rules: tuple[Gate, Rule],
    holders: dict[Gate, int] | None = None,
    buckets: dict[Gate, datetime] | None = None,
) -> Standing:
    """What holds, at `T0`."""
    return Standing(
        rules={(gate.scope, gate.name): rule for gate, rule in rules},
        holders=holders or {},
        buckets=buckets or {},
        now=T0,
    )


def most(count: int) -> Rule:
    return Rule(max_leases=count)


def test_a_run_meets_the_gates_of_all_it_belongs_to() -> None:
    run = a_run(concurrency_key="tenant", source=NIGHTLY)

    assert gates_of(run) == (IN_QUEUE, OF_TASK, OF_KEY, OF_SCHEDULE)
    assert gates_of(a_run()) == (IN_QUEUE, OF_TASK)


@pytest.mark.parametrize("key", ["", "a:b", 'say "hi"', "ü/🎉", "[1,2]"])
def test_a_gate_is_read_back_as_it_was_written(key: str) -> None:
    gate = Gate(LimitScope.KEY, "a:b", key)

    assert Gate.parse(str(gate)) == gate


def test_without_limits_everybody_is_admitted() -> None:
    admission = admit(RUNS, 9, standing(holders={IN_QUEUE: 99}))

    assert (admission.admitted, admission.parked, admission.passed) == (tuple(RUNS), (), ())


def test_nobody_is_admitted_beyond_the_places_there_are() -> None:
    assert admit(RUNS, 2, standing()).admitted == tuple(RUNS[:2])
    assert admit(RUNS, 0, standing()).admitted == ()


def test_the_room_there_is_goes_to_the_first_in_order() -> None:
    admission = admit(RUNS, 9, standing((IN_QUEUE, most(3)), holders={IN_QUEUE: 1}))

    assert admission.admitted == (RUNS[0], RUNS[1])
    assert (admission.parked, admission.passed) == ((), (RUNS[2],))


def test_a_full_limit_admits_nobody_even_when_it_was_lowered() -> None:
    admission = admit(RUNS, 9, standing((OF_TASK, most(2)), holders={OF_TASK: 5}))

    assert (admission.admitted, admission.passed) == ((), tuple(RUNS))


def test_each_key_of_a_task_counts_by_itself() -> None:
    other = a_run(run_id=run_id(9), concurrency_key="other")

    admission = admit([*RUNS, other], 9, standing((OF_KEY, most(1))))

    assert admission.admitted == (RUNS[0], other)
    assert {gate for _, gate in admission.parked} == {OF_KEY}


def test_a_parked_run_takes_no_room_from_those_behind_it() -> None:
    free = a_run(run_id=run_id(9))

    admission = admit([RUNS[0], free], 9, standing((IN_QUEUE, most(1)), (OF_KEY, most(0))))

    assert (admission.admitted, admission.parked) == ((free,), ((RUNS[0], OF_KEY),))


def test_whoever_waits_for_a_key_and_its_queue_is_parked_at_the_key() -> None:
    admission = admit(RUNS[:1], 9, standing((IN_QUEUE, most(0)), (OF_KEY, most(0))))

    assert admission.parked == ((RUNS[0], OF_KEY),)


def test_an_occurrence_that_began_before_needs_no_second_slot() -> None:
    fresh = a_run(source=NIGHTLY)
    begun = a_run(Status.RETRYING, source=NIGHTLY, run_id=run_id(2))

    admission = admit([fresh, begun], 9, standing((OF_SCHEDULE, most(1)), holders={OF_SCHEDULE: 1}))

    assert (admission.admitted, admission.parked) == ((begun,), ((fresh, OF_SCHEDULE),))


def test_a_rate_admits_as_many_as_it_has_tokens_for_and_keeps_count() -> None:
    admission = admit(RUNS, 9, standing((OF_TASK, Rule(pace=HOURLY))))

    assert (admission.admitted, admission.passed) == (tuple(RUNS[:2]), (RUNS[2],))
    assert admission.buckets == {OF_TASK: after(3600)}


def test_an_empty_bucket_of_a_key_parks_its_runs() -> None:
    admission = admit(RUNS, 9, standing((OF_KEY, Rule(pace=HOURLY)), buckets={OF_KEY: after(60)}))

    assert (admission.admitted, admission.buckets) == ((), {})
    assert admission.parked == tuple((run, OF_KEY) for run in RUNS)


def test_who_may_not_start_for_one_reason_takes_no_token_of_another() -> None:
    limits = standing((IN_QUEUE, Rule(pace=HOURLY)), (OF_KEY, most(0)))

    assert admit(RUNS, 9, limits).buckets == {}


def test_nobody_of_a_paused_queue_is_admitted() -> None:
    admission = admit(RUNS, 9, standing((IN_QUEUE, Rule(is_paused=True))))

    assert (admission.admitted, admission.passed) == ((), tuple(RUNS))


def test_a_run_whose_time_has_passed_needs_no_room() -> None:
    stale = a_run(expires_at=T0)

    admission = admit([stale, *RUNS], 1, standing((IN_QUEUE, Rule(max_leases=1, pace=HOURLY))))

    assert admission.admitted == (stale, RUNS[0])


RESERVED = then(
    a_run(concurrency_key="tenant", source=NIGHTLY),
    delivery_requested(delivery={"dispatch_expires_at": T0 + DELAY}),
)


def test_a_reserved_run_holds_what_it_needs_already() -> None:
    full = [(gate, Rule(max_leases=1, pace=HOURLY)) for gate in gates_of(RESERVED)]
    holders = dict.fromkeys(gates_of(RESERVED), 1)
    dry = dict.fromkeys(gates_of(RESERVED), after(60))

    admission = admit([RESERVED], 1, standing(*full, holders=holders, buckets=dry))

    assert (admission.admitted, admission.buckets) == ((RESERVED,), {})


def test_a_pause_keeps_a_reserved_run_back_too() -> None:
    paused = standing((IN_QUEUE, Rule(is_paused=True)))

    assert admit([RESERVED], 1, paused).passed == (RESERVED,)


def test_leased_and_reserved_runs_hold_their_gates() -> None:
    assert held_gates(RESERVED) == set(gates_of(RESERVED))
    assert held_gates(a_run(Status.CLAIMED)) == {IN_QUEUE, OF_TASK}
    assert held_gates(a_run(Status.RETRYING, source=NIGHTLY)) == {OF_SCHEDULE}
    assert held_gates(a_run()) == held_gates(None) == set()


def test_only_those_who_may_be_parked_are_let_in_when_room_is_made() -> None:
    running = a_run(Status.RUNNING, concurrency_key="tenant", source=NIGHTLY)
    retrying = a_run(Status.RETRYING, concurrency_key="tenant", source=NIGHTLY)
    ended = a_run(Status.SUCCEEDED, concurrency_key="tenant", source=NIGHTLY)

    assert freed_gates(running, retrying) == (OF_KEY,)
    assert freed_gates(running, ended) == (OF_KEY, OF_SCHEDULE)
    assert freed_gates(None, running) == ()


def test_a_gate_has_as_much_room_as_its_scarcest_rule() -> None:
    rule = Rule(max_leases=5, pace=HOURLY)

    assert standing().room(OF_KEY, 9) == 9
    assert standing((OF_KEY, most(5)), holders={OF_KEY: 2}).room(OF_KEY, 9) == 3
    assert standing((OF_KEY, rule), holders={OF_KEY: 2}).room(OF_KEY, 9) == 2
    assert standing((OF_KEY, rule), buckets={OF_KEY: after(9999)}).room(OF_KEY, 9) == 0
    assert standing((OF_KEY, Rule(pace=HOURLY))).room(OF_KEY, 1) == 1
