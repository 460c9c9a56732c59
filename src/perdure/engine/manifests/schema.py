"""What a manifest may hold: each field's name, what it takes, and what it is. One table for the
reader, the JSON Schema and the documentation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from perdure.core.decide.create import check_policy
from perdure.core.run.backoff import BackoffKind
from perdure.core.run.run import OnExhausted, OnLeaseExpired, Policy
from perdure.core.schedule import Fold, Gap, Misfire, Overlap
from perdure.engine.manifests.problems import Noted, check_each
from perdure.engine.runtime.input import only_known
from perdure.engine.tasks.options import Retry
from perdure.engine.tasks.target import Target, read_target
from perdure.errors import InvalidInput

Read = Callable[[Any, str], Any]

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_LENGTH = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[wdhms]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])")
_LIKE_LENGTH = "must be seconds, or a length like 90s, 5m, 1h30m or 2d"
_LIKE_INSTANT = "must be an instant like 2030-01-31T09:00:00Z or 2030-01-31T09:00:00+01:00"


class Field(NamedTuple):
    """What stands there: as JSON Schema, in words, and how it is read; by default as it is, and
    checked where it is used."""

    schema: dict[str, Any]
    about: str
    read: Read | None = None


def read_fields(given: Any, known: Mapping[str, Field], what: str, noted: Noted) -> dict[str, Any]:
    """What is given, read; null is as if it were not there, and so is what is refused and noted.
    Raises InvalidInput if it is no mapping."""
    if not isinstance(given, dict):
        raise InvalidInput("", f"must be a mapping, the {what}, not {given!r:.80}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        with noted.noting():
            only_known([name], known, f"field of a {what}")
            if value is not None:
                read = known[name].read
                found[name] = value if read is None else read(value, name)
    return found


def read_length(value: Any, field: str) -> Any:
    """Seconds as they are; text such as `1h30m` as a timedelta."""
    if not isinstance(value, str):
        return value
    if not _LENGTH.fullmatch(value):
        raise InvalidInput(field, f"{_LIKE_LENGTH}, not {value!r:.80}")
    try:
        parts = (_UNITS[unit] * float(number) for number, unit in _PART.findall(value))
        return sum(parts, timedelta(0))
    except OverflowError:
        raise InvalidInput(field, f"is longer than any calendar: {value!r:.80}") from None


def say_length(length: timedelta) -> str:
    """As `read_length` reads it."""
    said, rest = "", length
    for unit in ("d", "h", "m"):
        number, rest = divmod(rest, _UNITS[unit])
        said += f"{number}{unit}" if number else ""
    seconds = f"{rest.total_seconds():.6f}".rstrip("0").rstrip(".")
    return said if said and not rest else f"{said}{seconds}s"


def read_instant(value: Any, field: str) -> datetime:
    try:
        instant = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidInput(field, f"{_LIKE_INSTANT}, not {value!r:.80}") from None
    if instant.utcoffset() is None:
        raise InvalidInput(field, f"{_LIKE_INSTANT}: {value!r} does not say its offset from UTC")
    return instant


def read_retry(value: Any, field: str) -> Retry:
    noted, inner = Noted(), Noted()
    with inner.noting():
        given = read_fields(value, RETRY, "retry", inner)
        kinds = {name: given[name] for name in given if name in ("kind", "delays")}
        with noted.noting():
            check_each(lambda fields: Retry(**fields), given, kinds)
    noted.add(*(_within(field, error) for error in inner.errors))
    noted.settle()
    return Retry(**given)


def _within(field: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(f"{field}.{error.field}".rstrip("."), error.problem)


_NEEDED: dict[str, dict[str, Any]] = {
    "http": {"kind": "http", "url": "https://shop.example"},
    "shell": {"kind": "shell", "argv": ["true"]},
}


def read_whole_target(value: Any, field: str) -> Target:
    """Raises all that is wrong with it."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind in _NEEDED:
        check_each(lambda fields: read_target(fields, field), value, _NEEDED[kind])
    return read_target(value, field)


def read_policy(value: Any, field: str) -> Policy:
    """A policy written out whole."""
    if not isinstance(value, dict):
        raise InvalidInput(field, f"must be a mapping, not {value!r:.80}")
    only_known(value, Policy.__struct_fields__, f"field of a {field}")
    try:
        policy = msgspec.convert(value, Policy)
    except msgspec.ValidationError as error:
        raise InvalidInput(field, str(error)) from None
    check_policy(policy)
    return policy


def _delays(value: Any, field: str) -> Any:
    if not isinstance(value, list):
        return value
    return [read_length(delay, f"{field}[{place}]") for place, delay in enumerate(value)]


def _one_of(choices: type[StrEnum]) -> dict[str, Any]:
    return {"enum": [str(choice) for choice in choices]}


TEXT = {"type": "string"}
WHOLE = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number", "minimum": 0}
FLAG = {"type": "boolean"}
OBJECT = {"type": "object"}
LENGTH = {"anyOf": [NUMBER, {"type": "string", "pattern": f"^{_LENGTH.pattern}$"}]}
INSTANT = {"type": "string", "format": "date-time"}
DELAYS = {"type": "array", "items": LENGTH, "minItems": 1}
TAGS = {"type": "object", "additionalProperties": TEXT}

RETRY: dict[str, Field] = {
    "max_attempts": Field(WHOLE, "how many tries in all; 0 and 1 both mean one"),
    "initial": Field(LENGTH, "the first delay", read_length),
    "maximum": Field(LENGTH, "the longest delay", read_length),
    "factor": Field(NUMBER, "how delays grow"),
    "jitter": Field(NUMBER, "0 to 1: how far they are spread"),
    "kind": Field(_one_of(BackoffKind), "how they grow; list: as in `delays`"),
    "delays": Field(DELAYS, "each delay, the last one repeated", _delays),
    "on_exhausted": Field(_one_of(OnExhausted), "what becomes of it after the last try"),
    "poison_threshold": Field(WHOLE, "so many equal failures in a row are enough"),
}

CADENCE: dict[str, Field] = {
    "cron": Field(TEXT, "by the clock on the wall: five fields, six with seconds, or `@daily`"),
    "every": Field(LENGTH, "by elapsed time", read_length),
    "at": Field(INSTANT, "once", read_instant),
    "tz": Field(TEXT, "the zone of `cron`, e.g. Europe/Berlin; by default UTC"),
    "gap": Field(_one_of(Gap), "a time that clocks jump over"),
    "fold": Field(_one_of(Fold), "a time that comes twice"),
    "anchor": Field(INSTANT, "from where `every` counts", read_instant),
    "start": Field(INSTANT, "no time before", read_instant),
    "end": Field(INSTANT, "no time after", read_instant),
    "jitter": Field(LENGTH, "due up to so much later", read_length),
}

_POLICY = Field(OBJECT, "every rule at once, as `export` writes it if nothing shorter says it")
_TARGET = Field(OBJECT, "a request or a command: `{kind: http, url: …}`, `{kind: shell, argv: …}`")

SETTINGS: dict[str, Field] = {
    "payload": Field(OBJECT, "the arguments"),
    "misfire": Field(_one_of(Misfire), "times decided too late"),
    "misfire_grace": Field(LENGTH, "how late is too late", read_length),
    "catch_up_limit": Field(WHOLE, "how many are caught up with"),
    "catch_up_age": Field(LENGTH, "and how far back", read_length),
    "overlap": Field(_one_of(Overlap), "a time that comes while one has not ended"),
    "max_concurrency": Field(WHOLE, "how many at once"),
    "queue": Field(TEXT, "another queue than the task's"),
    "priority": Field(WHOLE, "0 to 10"),
    "retry": Field({"$ref": "#/$defs/retry"}, "other retries than the task's", read_retry),
    "timeout": Field(LENGTH, "how long an attempt may take", read_length),
    "policy": _POLICY._replace(read=read_policy),
    "ttl": Field(LENGTH, "forget a run that nobody began within", read_length),
    "concurrency_key": Field(TEXT, "for limits that count by key"),
    "tags": Field(TAGS, "of its runs"),
    "enabled": Field(FLAG, "false: it has no times at present"),
}

SCHEDULE: dict[str, Field] = {
    "name": Field(TEXT, "its name, which is its identity"),
    **CADENCE,
    "task": Field(TEXT, "the task it runs, by name"),
    "target": _TARGET._replace(read=read_whole_target),
    **SETTINGS,
}

TASK: dict[str, Field] = {
    "name": Field(TEXT, "its name"),
    "target": _TARGET._replace(read=read_whole_target),
    "queue": Field(TEXT, "where its runs wait"),
    "priority": Field(WHOLE, "0 to 10"),
    "retry": Field({"$ref": "#/$defs/retry"}, "how often and when to try again", read_retry),
    "timeout": Field(LENGTH, "how long an attempt may take; 5m unless said", read_length),
    "on_lease_expired": Field(_one_of(OnLeaseExpired), "if its worker was lost"),
    "policy": _POLICY._replace(read=read_policy),
    "ttl": Field(LENGTH, "forget a run that nobody began within", read_length),
}

CONTAINER: dict[str, Field] = {
    "schedules": Field({"type": "array", "items": {"$ref": "#/$defs/schedule"}}, "schedules"),
    "tasks": Field({"type": "array", "items": {"$ref": "#/$defs/task"}}, "targets by name"),
}


def json_schema() -> dict[str, Any]:
    """Of one document, for editors and other programs."""
    one_time = [{"required": [name]} for name in ("cron", "every", "at")]
    one_target = [{"required": [name]} for name in ("task", "target")]
    schedule = {
        **_object(SCHEDULE, "name"),
        "allOf": [{"oneOf": one_time}, {"oneOf": one_target}],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A manifest of Perdure",
        "anyOf": [{"$ref": "#/$defs/schedule"}, {"$ref": "#/$defs/several"}],
        "$defs": {
            "schedule": schedule,
            "task": _object(TASK, "name", "target"),
            "retry": _object(RETRY),
            "several": {**_object(CONTAINER), "minProperties": 1},
        },
    }


def _object(fields: Mapping[str, Field], *required: str) -> dict[str, Any]:
    properties = {
        name: {**field.schema, "description": field.about} for name, field in fields.items()
    }
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": list(required)} if required else made
