"""Which runs cannot go on because they wait for each other."""

from __future__ import annotations

import pytest

from perdure.core.why.circles import Waits, find_circle, find_stuck

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


def test_a_circle_begins_with_a_run_that_awaits_a_result() -> None:
    waits = Waits({A: B}, {B: held(A), C: held(A)})
    stuck = find_stuck(waits)

    assert [find_circle(run_id, waits, stuck) for run_id in (A, B, C)] == [(A, B)] * 3
    assert find_circle(D, waits, stuck) == ()
