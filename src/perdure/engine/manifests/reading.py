"""From documents to what they state: schedules, and the targets they need.

Checked here is what can be checked without a database; the rest in `applying`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from perdure.core.run import Policy
from perdure.core.schedule import Cadence, at, cron, every
from perdure.engine.door import text
from perdure.engine.executors.target import Target
from perdure.engine.manifests.fields import CADENCE, CONTAINER, SCHEDULE, TASK, read_fields
from perdure.engine.manifests.lines import Document, Path
from perdure.errors import InvalidInput, InvalidPayload

_WINDOW = ("start", "end", "jitter")
_FITTING = {
    "cron": ("tz", "gap", "fold", *_WINDOW),
    "every": ("anchor", *_WINDOW),
    "at": ("jitter",),
}
_MAKERS: dict[str, Any] = {"cron": cron, "every": every, "at": at}


class Where(NamedTuple):
    """Where something stands. `names`: what fields are called there, if not as here."""

    document: Document
    path: Path = ()
    names: Mapping[str, str] = {}

    def problem(self, error: InvalidInput) -> str:
        """Its file, line and field, and what is wrong there."""
        field = f"payload.{error.field}" if isinstance(error, InvalidPayload) else error.field
        field = self._called(field)
        line = self.document.line_of(self.path, field)
        full = (_dotted(self.path) + f".{field}").strip(".")
        return f"{self}, line {line}, {full}: {error.problem}".replace(", : ", ": ")

    def _called(self, field: str) -> str:
        """`argv[0]` stands where `argv` does, unless it has a name of its own."""
        for ours, theirs in self.names.items():
            if field == ours or field.startswith((f"{ours}.", f"{ours}[")):
                return theirs + field[len(ours) :]
        return field

    @property
    def line(self) -> int:
        return self.document.line_of(self.path)

    def __str__(self) -> str:
        return self.document.file


class StatedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A target under a name."""

    name: str
    target: Target
    settings: dict[str, Any]
    policy: Policy | None
    where: Where


class StatedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as far as it can be read without knowing its task. `own`: its target, if the
    task is nobody else's."""

    name: str
    task: str
    cadence: Cadence
    settings: dict[str, Any]
    policy: Policy | None
    where: Where
    own: StatedTask | None = None
    notes: tuple[str, ...] = ()


def parts_of(document: Document) -> Iterator[tuple[str, Any, Where]]:
    """What a document holds: "schedule" or "task", its value, and where. Raises InvalidInput."""
    value = document.value
    if not isinstance(value, dict) or not CONTAINER.keys() & value.keys():
        yield "schedule", value, Where(document)
        return
    for name, items in read_fields(value, CONTAINER, "manifest").items():
        if not isinstance(items, list):
            raise InvalidInput(name, f"must be a list, not {items!r:.80}")
        for place, item in enumerate(items):
            yield name.removesuffix("s"), item, Where(document, (name, place))


def read_schedule(given: Any, where: Where) -> StatedSchedule:
    """As Perdure writes it. Raises InvalidInput."""
    fields = read_fields(given, SCHEDULE, "schedule")
    name = _required(fields, "name")
    cadence = _cadence({key: fields.pop(key) for key in CADENCE if key in fields})
    policy, target = _policy(fields), fields.pop("target", None)
    task = fields.pop("task", None)
    if (task is None) == (target is None):
        raise InvalidInput("task", "name the task, or give a target of its own; one of the two")
    own = None
    if target is not None:
        own = StatedTask(name=name, target=target, settings={}, policy=None, where=where)
    return StatedSchedule(
        name=name,
        task=name if own else text(task, "task"),
        cadence=cadence,
        settings=fields,
        policy=policy,
        where=where,
        own=own,
    )


def read_task(given: Any, where: Where) -> StatedTask:
    """Raises InvalidInput."""
    fields = read_fields(given, TASK, "task")
    name, target = _required(fields, "name"), fields.pop("target", None)
    if target is None:
        raise InvalidInput("target", "is missing; say what it does, e.g. {kind: http, url: …}")
    policy = _policy(fields)
    return StatedTask(name=name, target=target, settings=fields, policy=policy, where=where)


def _required(fields: dict[str, Any], name: str) -> str:
    if name not in fields:
        raise InvalidInput(name, "is missing; it is needed")
    return text(fields.pop(name), name)


def _policy(fields: dict[str, Any]) -> Policy | None:
    policy: Policy | None = fields.pop("policy", None)
    if policy is not None and fields.keys() & {"retry", "timeout"}:
        raise InvalidInput("policy", "says all; leave out retry and timeout, or the policy")
    return policy


def _cadence(fields: dict[str, Any]) -> Cadence:
    """Raises InvalidInput unless it is one of the three, with what fits it."""
    kinds = [kind for kind in _MAKERS if kind in fields]
    if len(kinds) != 1:
        problem = "is missing; say cron, every or at" if not kinds else f"goes not with {kinds[1]}"
        raise InvalidInput(kinds[0] if kinds else "cron", problem)
    [kind] = kinds
    when = fields.pop(kind)
    for name in fields.keys() - set(_FITTING[kind]):
        fits = ", ".join(one for one in _MAKERS if name in _FITTING[one])
        raise InvalidInput(name, f"does not fit {kind}, only {fits}; leave it out")
    made: Cadence = _MAKERS[kind](when, **fields)
    return made


def _dotted(path: Path) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".")
