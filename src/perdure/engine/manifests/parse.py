"""From documents to what they state: schedules, and the targets they need.

Checked here is what can be checked without a database; the rest in `applying`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from perdure.core.json_text import encode_value
from perdure.core.run.run import Policy
from perdure.core.schedule import Cadence, at, cron, every
from perdure.core.schedule.clock_changes import EPOCH
from perdure.engine.manifests.problems import Noted, check_each
from perdure.engine.manifests.schema import CADENCE, CONTAINER, SCHEDULE, TASK, read_fields
from perdure.engine.manifests.yaml_lines import Document, Path
from perdure.engine.runtime.input import text
from perdure.engine.schedules.options import Target as ScheduleTarget
from perdure.engine.schedules.options import make_definition
from perdure.engine.tasks.target import Target
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
        full = (_dotted(self.path) + f".{self._called(error)}").strip(".")
        line = self.line_of(error)
        return f"{self}, line {line}, {full}: {error.problem}".replace(", : ", ": ")

    def line_of(self, error: InvalidInput) -> int:
        return self.document.line_of(self.path, self._called(error))

    def _called(self, error: InvalidInput) -> str:
        """`argv[0]` stands where `argv` does, unless it has a name of its own."""
        field = f"payload.{error.field}" if isinstance(error, InvalidPayload) else error.field
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


def parts_of(document: Document, noted: Noted) -> Iterator[tuple[str, Any, Where]]:
    """What a document holds: "schedule" or "task", its value, and where."""
    value = document.value
    if not isinstance(value, dict) or not CONTAINER.keys() & value.keys():
        yield "schedule", value, Where(document)
        return
    for name, items in read_fields(value, CONTAINER, "manifest", noted).items():
        if not isinstance(items, list):
            noted.add(InvalidInput(name, f"must be a list, not {items!r:.80}"))
            continue
        for place, item in enumerate(items):
            yield name.removesuffix("s"), item, Where(document, (name, place))


def read_schedule(given: Any, where: Where) -> StatedSchedule:
    """As Perdure writes it. Raises InvalidInput, with all that is wrong."""
    noted = Noted()
    fields = read_fields(given, SCHEDULE, "schedule", noted)
    name = _required(fields, given, "name", noted)
    cadence = _cadence({key: fields.pop(key) for key in CADENCE if key in fields}, given, noted)
    policy, target = _policy(fields, noted), fields.pop("target", None)
    task = fields.pop("task", None)
    if (given.get("task") is None) == (given.get("target") is None):
        one = "name the task, or give a target of its own; one of the two"
        noted.add(InvalidInput("task", one))
    with noted.noting():
        check_settings(name, fields, text("" if task is None else task, "task"))
    noted.settle()
    own = None
    if target is not None:
        own = StatedTask(name=name, target=target, settings={}, policy=None, where=where)
    return StatedSchedule(
        name=name,
        task=name if own else task,
        cadence=cadence,
        settings=fields,
        policy=policy,
        where=where,
        own=own,
    )


def read_task(given: Any, where: Where) -> StatedTask:
    """Raises InvalidInput, with all that is wrong."""
    noted = Noted()
    fields = read_fields(given, TASK, "task", noted)
    name, target = _required(fields, given, "name", noted), fields.pop("target", None)
    if given.get("target") is None:
        missing = "is missing; say what it does, e.g. {kind: http, url: …}"
        noted.add(InvalidInput("target", missing))
    policy = _policy(fields, noted)
    noted.settle()
    return StatedTask(name=name, target=target, settings=fields, policy=policy, where=where)


def check_settings(name: str, settings: Mapping[str, Any], task: str = "task") -> None:
    """Raises all that is wrong with them and with the name, as far as that can be known here."""
    target = ScheduleTarget(task or "task", Policy(), lambda payload: encode_value(dict(payload)))
    sample = name or "schedule"
    check_each(lambda said: make_definition(sample, _DAILY, target, said), settings)


_DAILY = cron("@daily")


def _required(fields: dict[str, Any], given: Any, name: str, noted: Noted) -> str:
    """Empty if it was noted that it is missing, or is no text."""
    if given.get(name) is None:
        noted.add(InvalidInput(name, "is missing; it is needed"))
    with noted.noting():
        return text(fields.pop(name, ""), name)
    return ""


def _policy(fields: dict[str, Any], noted: Noted) -> Policy | None:
    policy: Policy | None = fields.pop("policy", None)
    if policy is not None and fields.keys() & {"retry", "timeout"}:
        says = "says all; leave out retry and timeout, or the policy"
        noted.add(InvalidInput("policy", says))
    return policy


def _cadence(fields: dict[str, Any], given: Any, noted: Noted) -> Cadence:
    """One of the three, with what fits it; if that is not so, it is noted, and any cadence."""
    kinds = [kind for kind in _MAKERS if given.get(kind) is not None]
    if len(kinds) != 1:
        problem = "is missing; say cron, every or at" if not kinds else f"goes not with {kinds[1]}"
        noted.add(InvalidInput(kinds[0] if kinds else "cron", problem))
        return _DAILY
    [kind] = kinds
    for name in sorted(fields.keys() - {kind, *_FITTING[kind]}):
        fits = ", ".join(one for one in _MAKERS if name in _FITTING[one])
        noted.add(InvalidInput(name, f"does not fit {kind}, only {fits}; leave it out"))
    fitting = {name: value for name, value in fields.items() if name in (kind, *_FITTING[kind])}
    with noted.noting():
        check_each(lambda said: _made(kind, said), fitting, {kind: _ANY[kind]})
        if kind in fitting:
            return _made(kind, fitting)
    return _DAILY


_ANY: dict[str, Any] = {"cron": "@daily", "every": 60, "at": EPOCH}


def _made(kind: str, fields: Mapping[str, Any]) -> Cadence:
    options = {name: value for name, value in fields.items() if name != kind}
    made: Cadence = _MAKERS[kind](fields.get(kind, _ANY[kind]), **options)
    return made


def _dotted(path: Path) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".")
