"""Decodes what the API shows into the records that operators return beside the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.explain.why import Why
from perdure.core.limits.rates import Rate
from perdure.core.run.events import Event, RecordedEvent
from perdure.core.run.run import Run
from perdure.core.run.skip import Evidence
from perdure.core.schedule import Definition, Explanation, Schedule, SkippedSpan, Verdict
from perdure.engine.operators.limits import QueueState, Setting, TaskLimits
from perdure.storage.contract.logs import LogLine

Shown = dict[str, msgspec.Raw]
"""A JSON object whose fields are not decoded yet."""

_encode = msgspec.json.encode
_SCHEDULE_FIELDS = frozenset(Schedule.__struct_fields__) - {"definition"}


class Retried(msgspec.Struct, frozen=True):
    """A run and its first retry or rerun."""

    id: str
    retried_as: str | None = None


class RunId(msgspec.Struct, frozen=True):
    """All that is read of a run in a list."""

    id: str


class LogLineShown(msgspec.Struct, frozen=True, kw_only=True):
    attempt: int
    number: int
    at: datetime
    level_number: int
    logger: str
    message: str
    fields: dict[str, Any]


class ExplanationShown(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    sentence: str
    instant: datetime
    reason: str | None
    evidence: Evidence | None
    run_id: str | None
    span: SkippedSpan | None
    previous: datetime | None
    following: datetime | None
    why: Why | None


def decode_run(shown: Shown) -> Run:
    fields = {name: value for name, value in shown.items() if name != "payload"}
    fields["payload_json"] = shown["payload"]
    if "result" in fields:
        fields["result_json"] = fields.pop("result")
    return msgspec.json.decode(_encode(fields), type=Run)


def decode_event(shown: Shown, run_id: str, environment: str) -> RecordedEvent:
    details: Shown = msgspec.json.decode(shown["details"], type=Shown)
    event: dict[str, Any] = {name: value for name, value in shown.items() if name != "details"}
    event |= {**details, "run_id": run_id, "environment": environment}
    sequence = msgspec.json.decode(event.pop("sequence"), type=int)
    return RecordedEvent(sequence, msgspec.json.decode(_encode(event), type=Event))


def decode_log_line(shown: LogLineShown) -> LogLine:
    return LogLine(
        attempt=shown.attempt,
        number=shown.number,
        at=shown.at,
        level=shown.level_number,
        logger=shown.logger,
        message=shown.message,
        fields=shown.fields,
    )


def decode_schedule(shown: Shown) -> Schedule:
    fields: dict[str, Any] = {k: v for k, v in shown.items() if k in _SCHEDULE_FIELDS}
    definition = {k: v for k, v in shown.items() if k in Definition.__struct_fields__}
    definition |= {"id": shown["name"], "payload_json": shown["payload"]}
    return msgspec.json.decode(_encode(fields | {"definition": definition}), type=Schedule)


def decode_explanation(shown: ExplanationShown, run: Run | None) -> Explanation:
    names = (name for name in shown.__struct_fields__ if name != "run_id")
    return Explanation(run=run, **{name: getattr(shown, name) for name in names})


def decode_queue(shown: QueueState) -> QueueState:
    """Rates arrive as plain objects, because a setting may have any value."""
    return replace(shown, rate=_with_rate(shown.rate))


def decode_limits(shown: TaskLimits) -> TaskLimits:
    return replace(shown, rate=_with_rate(shown.rate), rate_per_key=_with_rate(shown.rate_per_key))


def _with_rate(setting: Setting) -> Setting:
    return replace(setting, value=_rate(setting.value), code=_rate(setting.code))


def _rate(value: Any) -> Rate | None:
    return None if value is None else msgspec.convert(value, Rate, strict=False)
