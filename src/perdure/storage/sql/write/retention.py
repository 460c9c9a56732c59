"""What pruned runs were to their schedules: keys nobody can want, and how far the record goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from perdure.core.run.effects import Key, KeyKind
from perdure.core.schedule.definition import Schedule
from perdure.core.schedule.occurrence import forgettable_keys
from perdure.storage.sql import rows
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Rows, Step, trip
from perdure.storage.sql.write.schedules import Name, read_schedules


class _Pruned(NamedTuple):
    run_id: str
    schedule: Name
    nominal: datetime | None


def forget_times(found: Rows, dialect: Dialect) -> Operation[None]:
    """Before these runs go. Keys are locked before schedules, each in order, as by everybody."""
    pruned = [
        _Pruned(dialect.run_id(run_id), (environment, name), dialect.moment(nominal))
        for run_id, environment, name, nominal in found
        if name is not None
    ]
    if not pruned:
        return
    schedules = yield from read_schedules({it.schedule for it in pruned}, dialect)
    reached = _reached(pruned)
    wanted = [{"environment": place, "name": name} for place, name in sorted(reached)]
    yield trip(
        Many("drop_keys", sorted(_keys(pruned, schedules, dialect), key=lambda row: row["name"])),
        Step("lock_schedules", {"wanted": rows.json_list(wanted)}),
        Many(
            "forget_times",
            [
                {"environment": place, "name": name, "until": dialect.instant(until)}
                for (place, name), until in sorted(reached.items())
            ],
        ),
    )


def _keys(
    pruned: Sequence[_Pruned], schedules: dict[Name, Schedule], dialect: Dialect
) -> Iterator[rows.Fields]:
    for it in pruned:
        owner = {"run_id": dialect.key(it.run_id)}
        for name in forgettable_keys(it.run_id, it.nominal, schedules.get(it.schedule)):
            key = Key(it.schedule[0], KeyKind.OCCURRENCE, "", name)
            yield rows.key_fields(key) | owner


def _reached(pruned: Sequence[_Pruned]) -> dict[Name, datetime]:
    """The newest time of each schedule that goes."""
    reached: dict[Name, datetime] = {}
    for it in pruned:
        if it.nominal is not None:
            reached[it.schedule] = max(it.nominal, reached.get(it.schedule, it.nominal))
    return reached
