"""The audit trail: whatever is done to a sealed entry shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from perdure.core.audit_chain import AuditEntry, SealedEntry, flaws, seal
from perdure.core.run.run import Actor, ActorType

AT = datetime(2030, 1, 1, tzinfo=UTC)


def entry(number: int) -> AuditEntry:
    return AuditEntry(
        at=AT + timedelta(seconds=number),
        actor=Actor(ActorType.OPERATOR, "ada"),
        action="cancel",
        target=f"run_{number}",
        outcome="done",
    )


@pytest.fixture
def trail() -> list[SealedEntry]:
    return seal("production", map(entry, range(1, 6)), None)


def test_a_trail_that_nobody_touched_has_no_flaws(trail: list[SealedEntry]) -> None:
    assert list(flaws(trail)) == []
    assert [sealed.entry for sealed in trail] == [entry(number) for number in range(1, 6)]


def test_a_trail_goes_on_where_it_was_left(trail: list[SealedEntry]) -> None:
    first, rest = trail[:2], seal("production", map(entry, range(3, 6)), trail[1])

    assert first + rest == trail
    assert list(flaws(rest, trail[1])) == []


def test_a_changed_entry_shows(trail: list[SealedEntry]) -> None:
    trail[2] = replace(trail[2], body=trail[2].body.replace("run_3", "run_9"))

    assert list(flaws(trail)) == ["entry 3 is not the one that was sealed there"]


def test_a_changed_entry_shows_even_if_it_was_sealed_anew(trail: list[SealedEntry]) -> None:
    [trail[2]] = seal("production", [entry(9)], trail[1])

    assert list(flaws(trail)) == ["entry 4 is not the one that was sealed there"]


def test_a_missing_entry_shows(trail: list[SealedEntry]) -> None:
    del trail[2]

    assert list(flaws(trail)) == ["entry 3 is missing: 4 follows 2"]


def test_entries_that_changed_places_show(trail: list[SealedEntry]) -> None:
    trail[1], trail[2] = trail[2], trail[1]

    assert next(flaws(trail)) == "entry 2 is missing: 3 follows 1"


def test_an_entry_of_another_environment_shows(trail: list[SealedEntry]) -> None:
    [trail[0]] = seal("staging", [entry(1)], None)
    trail[0] = replace(trail[0], environment="production")

    assert next(flaws(trail)) == "entry 1 is not the one that was sealed there"
