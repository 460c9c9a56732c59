"""What has to be done so that the stored schedules say what code or a manifest says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from perdure.core.schedule.definition import (
    DefinedBy,
    Definition,
    Schedule,
    definition_hash,
)
from perdure.errors import InvalidInput


class Stated(msgspec.Struct, frozen=True):
    """A definition as code states it; of two versions of the code the higher is newer."""

    definition: Definition
    version: int | None = None


class Kept(msgspec.Struct, frozen=True):
    """A stored schedule that stays as it is although something else was stated."""

    schedule: Schedule
    because: str


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """Orphaned ones are only reported: to delete them is an operator's decision."""

    added: tuple[Stated, ...] = ()
    changed: tuple[tuple[Schedule, Stated], ...] = ()
    unchanged: tuple[Schedule, ...] = ()
    kept: tuple[Kept, ...] = ()
    orphaned: tuple[Schedule, ...] = ()


def reconcile(
    stated: Sequence[Stated], stored: Iterable[Schedule], by: DefinedBy = DefinedBy.CODE
) -> Reconciliation:
    """Compare what code (or a manifest) states with what is stored, in one environment.

    Code changes a schedule only if its definition is newer or no operator has touched it. A
    definition is newer if it differs from the last one taken from code, unless it carries a
    lower version than that. Applying a manifest is an operator's act: it says what holds.

    Raises InvalidInput if one id is stated twice.
    """
    _refuse_twins(stated)
    known = {schedule.id: schedule for schedule in stored}
    pairs = [(known.get(one.definition.id), one) for one in stated]
    met = [(schedule, one, _because(schedule, one, by)) for schedule, one in pairs if schedule]
    named = {one.definition.id for one in stated}
    return Reconciliation(
        added=tuple(one for schedule, one in pairs if schedule is None),
        changed=tuple((schedule, one) for schedule, one, because in met if because is None),
        unchanged=tuple(schedule for schedule, _, because in met if because == ""),
        kept=tuple(Kept(schedule, because) for schedule, _, because in met if because),
        orphaned=tuple(
            schedule
            for schedule in known.values()
            if schedule.id not in named and schedule.defined_by is by and not schedule.deleted
        ),
    )


def _because(schedule: Schedule, stated: Stated, by: DefinedBy) -> str | None:
    """Why the stored one stays as it is: empty if it already says so. None: it changes."""
    if by is DefinedBy.MANIFEST:
        is_same = schedule.definition == stated.definition and schedule.deleted is None
        return "" if is_same else None
    if schedule.defined_by is not by:
        return f"it is defined by {schedule.defined_by}; give the schedule in code another name"
    if schedule.definition_hash != definition_hash(stated.definition):
        return _older(schedule, stated)
    if schedule.deleted is not None:
        return "an operator deleted it and its definition has not changed since"
    if schedule.touched is not None:
        return "an operator changed it and its definition has not changed since"
    return ""


def _older(schedule: Schedule, stated: Stated) -> str | None:
    stored = schedule.definition_version
    if stated.version is None or stored is None or stated.version >= stored:
        return None
    return f"it was defined by version {stored}, this code is version {stated.version}"


def _refuse_twins(stated: Sequence[Stated]) -> None:
    counts = Counter(one.definition.id for one in stated)
    twins = [name for name, count in counts.items() if count > 1]
    if twins:
        raise InvalidInput(
            "name", f"{twins[0]!r} is defined twice; give each schedule its own name"
        )
