"""What defines a schedule, as the API takes it. Durations are sent as seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import msgspec

from perdure.core.json_text import encode_value
from perdure.core.schedule import Cadence, Cron, Definition, Interval, Once, named_options
from perdure.engine.definition.task import Task
from perdure.engine.rest.client import EXPLICIT_NULL
from perdure.engine.runtime.input import duration, only_known
from perdure.engine.schedules.options import ScheduleKeywords, Target, target_of
from perdure.engine.tasks.options import Retry, check_retry
from perdure.errors import InvalidInput

_DURATIONS = ("misfire_grace", "catch_up_age", "timeout", "ttl")
_RETRY_DURATIONS = ("initial", "maximum")


def encode_cadence(cadence: Cadence) -> dict[str, Any]:
    """With the options that it names: in an update the others stay."""
    options = {name: getattr(cadence, name) for name in sorted(named_options(cadence))}
    if "jitter" in options:
        options["jitter"] = cadence.jitter.total_seconds()
    match cadence:
        case Cron():
            return {"cron": cadence.expression, **options}
        case Interval():
            return {"every": cadence.length.total_seconds(), **options}
        case Once():
            return {"at": cadence.instant, **options}
        case _:
            assert_never(cadence)


def encode_settings(
    tasks: Mapping[str, Task[..., Any]], limit: int, task: str | None, settings: ScheduleKeywords
) -> dict[str, Any]:
    """The settings that are given; None among them is sent as null. Raises InvalidInput."""
    only_known(settings, ScheduleKeywords.__annotations__, "setting of a schedule")
    body: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "payload":
            own = None if task is None else target_of(tasks, task, limit)
            body[name] = _encode_payload(own, limit, value)
        elif value is None:
            body[name] = EXPLICIT_NULL
        elif name == "retry":
            body[name] = encode_retry(check_retry(value))  # type: ignore[arg-type]  # checked
        elif name in _DURATIONS:
            body[name] = duration(value, name).total_seconds()  # type: ignore[arg-type]  # checked
        else:
            body[name] = value
    return body


def encode_definition(definition: Definition) -> dict[str, Any]:
    """All of a definition, for a request that carries several."""
    fields = msgspec.structs.asdict(definition)
    body = {name: value for name, value in fields.items() if value is not None}
    body["name"] = body.pop("id")
    body["payload"] = body.pop("payload_json")
    body["cadence"] = encode_cadence(definition.cadence)
    for name in _DURATIONS:
        if name in body:
            body[name] = body[name].total_seconds()
    return body


def _encode_payload(own: Target | None, limit: int, payload: Any) -> msgspec.Raw:
    """By the task's own types where this app has the task."""
    given = {} if payload is None else payload
    if not isinstance(given, Mapping):
        raise InvalidInput("payload", f"must be a dict of arguments, not {payload!r:.80}")
    if own is not None:
        return own.encode(given)
    return encode_value(dict(given), limit=limit)


def encode_retry(retry: Retry) -> dict[str, Any]:
    fields = msgspec.structs.asdict(retry)
    body = {name: value for name, value in fields.items() if value is not None}
    for name in _RETRY_DURATIONS:
        if name in body:
            body[name] = duration(body[name], f"retry.{name}").total_seconds()
    body["delays"] = [duration(it, "retry.delays").total_seconds() for it in retry.delays]
    return body
