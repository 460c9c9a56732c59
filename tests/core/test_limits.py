"""How many at once: who gets the room there is."""

from __future__ import annotations

import pytest

from builders import QUEUE, TASK, a_run, run_id
from perdure.core.lifecycle import Status
from perdure.core.limits import Gate, LimitScope, admit, gates_of
from perdure.core.run import Source, SourceType

IN_QUEUE = Gate(LimitScope.QUEUE, QUEUE)
OF_TASK = Gate(LimitScope.TASK, TASK)
OF_KEY = Gate(LimitScope.KEY, TASK, "tenant")
OF_SCHEDULE = Gate(LimitScope.SCHEDULE, "nightly")
NIGHTLY = Source(type=SourceType.SCHEDULE, schedule_id="nightly")

RUNS = [a_run(run_id=run_id(n), concurrency_key="tenant") for n in range(3)]


def test_a_run_meets_the_gates_of_all_it_belongs_to() -> None:
    run = a_run(concurrency_key="tenant", source=NIGHTLY)

    assert gates_of(run) == (IN_QUEUE, OF_TASK, OF_KEY, OF_SCHEDULE)
    assert gates_of(a_run()) == (IN_QUEUE, OF_TASK)


@pytest.mark.parametrize("key", ["", "a:b", 'say "hi"', "ü/🎉", "[1,2]"])
def test_a_gate_is_read_back_as_it_was_written(key: str) -> None:
    gate = Gate(LimitScope.KEY, "a:b", key)

    assert Gate.parse(str(gate)) == gate


def test_without_limits_everybody_is_admitted() -> None:
    admission = admit(RUNS, {}, {IN_QUEUE: 99})

    assert (admission.admitted, admission.parked) == (tuple(RUNS), ())


def test_the_room_there_is_goes_to_the_first_in_order() -> None:
    admission = admit(RUNS, {(LimitScope.QUEUE, QUEUE): 3}, {IN_QUEUE: 1})

    assert admission.admitted == (RUNS[0], RUNS[1])
    assert admission.parked == ((RUNS[2], IN_QUEUE),)


def test_a_full_limit_admits_nobody_even_when_it_was_lowered() -> None:
    admission = admit(RUNS, {(LimitScope.TASK, TASK): 2}, {OF_TASK: 5})

    assert admission.admitted == ()
    assert {gate for _, gate in admission.parked} == {OF_TASK}


def test_each_key_of_a_task_counts_by_itself() -> None:
    other = a_run(run_id=run_id(9), concurrency_key="other")

    admission = admit([*RUNS, other], {(LimitScope.KEY, TASK): 1}, {})

    assert admission.admitted == (RUNS[0], other)
    assert {gate for _, gate in admission.parked} == {OF_KEY}


def test_a_parked_run_takes_no_room_from_those_behind_it() -> None:
    free = a_run(run_id=run_id(9))
    limits = {(LimitScope.QUEUE, QUEUE): 1, (LimitScope.KEY, TASK): 0}

    admission = admit([RUNS[0], free], limits, {})

    assert (admission.admitted, admission.parked) == ((free,), ((RUNS[0], OF_KEY),))


def test_an_occurrence_that_began_before_needs_no_second_slot() -> None:
    fresh = a_run(source=NIGHTLY)
    begun = a_run(Status.RETRYING, source=NIGHTLY, run_id=run_id(2))

    admission = admit([fresh, begun], {(LimitScope.SCHEDULE, "nightly"): 1}, {OF_SCHEDULE: 1})

    assert (admission.admitted, admission.parked) == ((begun,), ((fresh, OF_SCHEDULE),))
