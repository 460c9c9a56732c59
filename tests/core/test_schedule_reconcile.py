"""Definitions in code and manifests beside the stored schedules."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from builders import OPERATOR
from perdure.core.schedule import (
    DefinedBy,
    Schedule,
    Stated,
    Touch,
    decide_update,
    new_schedule,
    reconcile,
)
from perdure.errors import InvalidInput
from scheduling import NINE, a_definition, deleted

A = a_definition()
B = a_definition(max_concurrency=2)
TOUCH = Touch(by=OPERATOR, at=NINE)


def stored(version: int | None = None, by: DefinedBy = DefinedBy.CODE) -> Schedule:
    return new_schedule(A, NINE, defined_by=by, definition_version=version)


def touched() -> Schedule:
    change = decide_update(stored(), a_definition(priority=9), NINE, touch=TOUCH)
    assert change.schedule is not None
    return change.schedule


def test_what_nobody_has_stored_is_added() -> None:
    assert reconcile([Stated(A)], []).added == (Stated(A),)


def test_what_says_the_same_is_unchanged() -> None:
    found = reconcile([Stated(A)], [stored()])

    assert (found.unchanged, found.changed, found.kept, found.orphaned) == ((stored(),), (), (), ())


def test_what_says_something_else_is_changed() -> None:
    assert reconcile([Stated(B)], [stored()]).changed == ((stored(), Stated(B)),)


def test_what_is_no_longer_defined_is_orphaned_and_only_reported() -> None:
    by_hand = new_schedule(a_definition(id="by hand"), NINE)
    gone = deleted(replace(stored(), definition=a_definition(id="gone")))

    assert reconcile([], [stored(), by_hand, gone]).orphaned == (stored(),)


def test_an_operators_change_stays_while_the_code_says_what_it_said() -> None:
    found = reconcile([Stated(A)], [touched()])

    (kept,) = found.kept
    assert (kept.schedule, found.changed) == (touched(), ())
    assert "operator changed it" in kept.because


def test_an_operators_change_ends_with_a_newer_definition() -> None:
    assert reconcile([Stated(B)], [touched()]).changed == ((touched(), Stated(B)),)


def test_older_code_that_starts_late_changes_nothing_back() -> None:
    found = reconcile([Stated(B, version=2)], [stored(version=3)])

    (kept,) = found.kept
    assert kept.because == "it was defined by version 3, this code is version 2"
    assert reconcile([Stated(B, version=3)], [stored(version=3)]).changed
    assert reconcile([Stated(B, version=4)], [stored(version=3)]).changed
    assert reconcile([Stated(B)], [stored(version=3)]).changed


def test_a_deletion_stays_until_the_definition_changes() -> None:
    gone = deleted(stored())

    assert "deleted" in reconcile([Stated(A)], [gone]).kept[0].because
    assert reconcile([Stated(B)], [gone]).changed == ((gone, Stated(B)),)


def test_code_does_not_take_over_what_others_have_defined() -> None:
    for by in (DefinedBy.OPERATOR, DefinedBy.MANIFEST):
        (kept,) = reconcile([Stated(B)], [stored(by=by)]).kept
        assert f"defined by {by}" in kept.because


def test_a_manifest_says_what_holds() -> None:
    by = DefinedBy.MANIFEST
    gone = deleted(stored(by=by))

    assert reconcile([Stated(A)], [stored(by=by)], by).unchanged
    assert reconcile([Stated(A)], [touched()], by).changed == ((touched(), Stated(A)),)
    assert reconcile([Stated(A)], [gone], by).changed == ((gone, Stated(A)),)
    assert reconcile([], [stored(by=by)], by).orphaned == (stored(by=by),)
    assert reconcile([], [touched()], by).orphaned == ()


def test_one_name_is_for_one_schedule() -> None:
    with pytest.raises(InvalidInput, match="'digest' is defined twice"):
        reconcile([Stated(A), Stated(B)], [])
