"""Wakeplane's manifests, read as what they mean to Wakeplane, as far as Perdure has it.

Defaults are Wakeplane's. A time in the gap of turned clocks is skipped, one that comes twice runs
once. What it counts from its own creation (an interval without an anchor) is counted from 1970.
"""

from __future__ import annotations

from typing import Any

from perdure.core.run import OnExhausted
from perdure.core.schedule import Cadence, Gap, Misfire, Once, Overlap, at, cron, every
from perdure.core.schedule.definition import MOST_CAUGHT_UP
from perdure.engine.door import choice, count, did_you_mean, flag, only_known, text
from perdure.engine.executors.target import Target, read_target
from perdure.engine.manifests.fields import read_instant
from perdure.engine.manifests.reading import StatedSchedule, StatedTask, Where
from perdure.engine.options import Retry
from perdure.errors import InvalidInput

_ITS_OWN_RECORD = ("id", "paused_at", "next_run_at", "last_run_at", "created_at", "updated_at")
_DEFINITION = ("name", "enabled", "timezone", "schedule", "target", "policy", "retry")
_KNOWN = (*_DEFINITION, "start_at", "end_at", *_ITS_OWN_RECORD)
_SPEC = ("kind", "expr", "every_seconds", "anchor_at", "at")
_TARGETS = {
    "http": ("kind", "method", "url", "headers", "body"),
    "shell": ("kind", "command", "args"),
    "workflow": ("kind", "workflow_id", "input"),
}
_POLICY = ("overlap", "misfire", "timeout_seconds", "max_concurrency")
_RETRY = ("max_attempts", "strategy", "initial_delay_seconds", "max_delay_seconds")
_OVERLAPS = tuple(str(one) for one in Overlap if one is not Overlap.SKIP)
_MISFIRES = {
    "skip": Misfire.SKIP,
    "run_once_if_late": Misfire.RUN_ONCE,
    "catch_up": Misfire.CATCH_UP,
}
NAMES = {
    "cron": "schedule.expr",
    "tz": "timezone",
    "every": "schedule.every_seconds",
    "anchor": "schedule.anchor_at",
    "at": "schedule.at",
    "start": "start_at",
    "end": "end_at",
    "timeout": "policy.timeout_seconds",
    "overlap": "policy.overlap",
    "misfire": "policy.misfire",
    "max_concurrency": "policy.max_concurrency",
    "retry.initial": "retry.initial_delay_seconds",
    "retry.maximum": "retry.max_delay_seconds",
    "target.argv[0]": "target.command",
    "task": "target.workflow_id",
}
_NOT_ENABLED = "does not say `enabled`, which to Wakeplane means false: it has no times at present"
_NO_JOBS = "is not followed by Perdure: the run ends with the answer to the request; leave it out"


def is_wakeplane(value: Any) -> bool:
    return isinstance(value, dict) and (
        "timezone" in value or isinstance(value.get("schedule"), dict)
    )


def read_wakeplane(given: dict[str, Any], where: Where) -> StatedSchedule:
    """Raises InvalidInput, with the names of Perdure; `where` knows Wakeplane's."""
    only_known(given, _KNOWN, "field of Wakeplane's manifest")
    given = {name: value for name, value in given.items() if value is not None}
    name = text(_needed(given, "name"), "name")
    target, payload_name = _target(given)
    payload = target.pop(payload_name, None)
    where = where._replace(names={**NAMES, "payload": f"target.{payload_name}"})
    own = None
    if target["kind"] != "workflow":
        made = _made(target)
        own = StatedTask(name=name, target=made, settings={}, policy=None, where=where)
    settings = {**_policy(given), "retry": _retry(given), "payload": payload}
    enabled = flag(given.get("enabled", False), "enabled")
    return StatedSchedule(
        name=name,
        task=name if own else text(target["workflow_id"], "target.workflow_id"),
        cadence=_cadence(given),
        settings={**settings, "enabled": enabled},
        policy=None,
        where=where,
        own=own,
        notes=() if "enabled" in given else (f"{name} {_NOT_ENABLED}",),
    )


def _needed(given: dict[str, Any], name: str, inside: str = "") -> Any:
    if name not in given:
        raise InvalidInput(f"{inside}{name}", "is missing; Wakeplane needs it")
    return given[name]


def _part(given: dict[str, Any], name: str, known: tuple[str, ...]) -> dict[str, Any]:
    part = given.get(name, {})
    if not isinstance(part, dict):
        raise InvalidInput(name, f"must be a mapping, not {part!r:.80}")
    for inner in part.keys() - set(known):
        hint = did_you_mean(inner, known) or f"; there are: {', '.join(known)}"
        raise InvalidInput(f"{name}.{inner}", f"is no field of Wakeplane's {name}{hint}")
    return {inner: value for inner, value in part.items() if value is not None}


def _cadence(given: dict[str, Any]) -> Cadence:
    _needed(given, "schedule")
    spec = _part(given, "schedule", _SPEC)
    tz = text(_needed(given, "timezone"), "timezone")
    window: dict[str, Any] = {
        ours: read_instant(given[theirs], theirs)
        for ours, theirs in (("start", "start_at"), ("end", "end_at"))
        if theirs in given
    }
    checked = cron("@daily", tz=tz)  # Wakeplane wants a zone also where it means nothing
    match spec.get("kind"):
        case "cron":
            expression = text(_needed(spec, "expr", "schedule."), "schedule.expr")
            return cron(expression, tz=checked.tz, gap=Gap.SKIP, **window)
        case "interval":
            seconds = count(_needed(spec, "every_seconds", "schedule."), "schedule.every_seconds")
            anchor = read_instant(spec["anchor_at"], "anchor") if "anchor_at" in spec else None
            return every(seconds, anchor=anchor, **window)
        case "once":
            return _once(read_instant(_needed(spec, "at", "schedule."), "at"), window)
        case other:
            problem = f"must be cron, interval or once, not {other!r:.80}"
            raise InvalidInput("schedule.kind", problem)


def _once(instant: Any, window: dict[str, Any]) -> Once:
    if instant < window.get("start", instant) or instant > window.get("end", instant):
        raise InvalidInput("at", "lies outside of start_at and end_at, so it never comes")
    return at(instant)


def _target(given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What to do, and which of it is the payload."""
    target = _needed(given, "target")
    kind = target.get("kind") if isinstance(target, dict) else None
    if kind not in _TARGETS:
        raise InvalidInput("target.kind", f"must be http, shell or workflow, not {kind!r:.80}")
    if target.get("http_job") is not None:
        raise InvalidInput("target.http_job", _NO_JOBS)
    known = (*_TARGETS[kind], "http_job")
    part = _part(given, "target", known)
    needed = {"http": ("url", "method"), "shell": ("command",), "workflow": ("workflow_id",)}
    for name in needed[kind]:
        _needed(part, name, "target.")
    return part, {"http": "body", "shell": "input", "workflow": "input"}[kind]


def _made(target: dict[str, Any]) -> Target:
    if target["kind"] == "http":
        return read_target(target)
    args = target.get("args", [])
    if not isinstance(args, list):
        raise InvalidInput("target.args", f"must be a list, not {args!r:.80}")
    for place, word in enumerate([target["command"], *args], -1):
        if not isinstance(word, str):
            field = "target.command" if place < 0 else f"target.args[{place}]"
            raise InvalidInput(field, f"must be text, not {word!r:.80}; put it in quotes")
    return read_target({"kind": "shell", "argv": [target["command"], *args]})


def _policy(given: dict[str, Any]) -> dict[str, Any]:
    policy = _part(given, "policy", _POLICY)
    overlap = policy.get("overlap", "forbid")
    misfire = policy.get("misfire", "run_once_if_late")
    if overlap not in _OVERLAPS:
        problem = f"must be one of {', '.join(_OVERLAPS)}, not {overlap!r:.80}"
        raise InvalidInput("overlap", problem)
    if misfire not in _MISFIRES:
        problem = f"must be one of {', '.join(_MISFIRES)}, not {misfire!r:.80}"
        raise InvalidInput("misfire", problem)
    all_of_them = {"catch_up_limit": MOST_CAUGHT_UP} if misfire == "catch_up" else {}
    return {
        **all_of_them,
        "overlap": choice(overlap, Overlap, "overlap"),
        "misfire": _MISFIRES[misfire],
        "timeout": count(policy.get("timeout_seconds", 300), "timeout"),
        "max_concurrency": policy.get("max_concurrency", 1),
    }


def _retry(given: dict[str, Any]) -> Retry:
    retry = _part(given, "retry", _RETRY)
    strategy = retry.get("strategy", "exponential")
    if strategy not in ("none", "exponential"):
        raise InvalidInput("retry.strategy", f"must be none or exponential, not {strategy!r:.80}")
    initial = count(retry.get("initial_delay_seconds", 30), "retry.initial")
    maximum = count(retry.get("max_delay_seconds", 900), "retry.maximum")
    if maximum < initial:
        raise InvalidInput("retry.maximum", f"must not be less than the initial delay, {initial}")
    tries = count(retry.get("max_attempts", 0), "retry.max_attempts", least=0)
    return Retry(
        max_attempts=1 if strategy == "none" else max(tries, 1),
        initial=initial,
        maximum=maximum,
        factor=2,
        jitter=0,
        kind="exponential",
        on_exhausted=OnExhausted.DEAD_LETTER,
    )
