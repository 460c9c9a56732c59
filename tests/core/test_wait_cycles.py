"""Which runs cannot go on because they wait for each other."""

from __future__ import annotations

import pytest

from builders import TASK, a_run, a_worker
from perdure.core.explain.wait_cycles import Waits, find_cycle, find_stuck
from perdure.core.explain.why import SeenWorker

A, B, C, D = "a", "b", "c", "d"


def held(*holders: str) -> tuple[frozenset[str], ...]:
    return (frozenset(holders),)


@pytest.mark.parametrize(
    ("waits", "stuck"),
    [
        (Waits({}, {}), set()),
        (Waits({A: B}, {}), set()),
        (Waits({A: B}, {B: ()}), set()),
        (Waits({A: B}, {B: held(A)}), {A, B}),
        (Waits({A: B}, {B: held(A, C)}), set()),
        (Waits({A: B, C: D}, {B: held(A, C), D: held(A, C)}), {A, B, C, D}),
        (Waits({A: B, C: D}, {B: held(A, C)}), set()),
        (Waits({A: B, B: A}, {}), {A, B}),
        (Waits({A: A}, {}), {A}),
        (Waits({A: B}, {B: held(C) + held(A)}), {A, B}),
    ],
)
def test_only_runs_that_no_other_run_can_help_are_stuck(waits: Waits, stuck: set[str]) -> None:
    assert find_stuck(waits) == stuck


def test_a_cycle_begins_with_a_run_that_awaits_a_result() -> None:
    waits = Waits({A: B}, {B: held(A), C: held(A)})
    stuck = find_stuck(waits)

    assert [find_cycle(run_id, waits, stuck) for run_id in (A, B, C)] == [(A, B)] * 3
    assert find_cycle(D, waits, stuck) == ()


@pytest.mark.parametrize(
    ("worker", "can_take"),
    [
        (a_worker(versions={TASK: 2}), True),
        (a_worker(versions={TASK: 3}, queues=("mail",)), True),
        (a_worker(versions={TASK: 2}, queues=("other",)), False),
        (a_worker(versions={TASK: 2}, tasks=()), False),
        (a_worker(versions={TASK: 1}), False),
        (a_worker(), False),
    ],
)
def test_a_worker_can_take_a_run_of_its_tasks_versions_and_queues(
    worker: SeenWorker, can_take: bool
) -> None:
    assert worker.could_take(a_run(task_version=2, queue="mail")) is can_take


def test_a_worker_that_stops_does_not_stay() -> None:
    states = [(True, False), (True, True), (False, False)]
    workers = [a_worker(is_live=live, is_stopping=stopping) for live, stopping in states]

    assert [worker.is_staying for worker in workers] == [True, False, False]
