"""Wakeplane's manifests, read as what they mean to Wakeplane, as far as Perdure has it.

Defaults are Wakeplane's. A time in the gap of turned clocks is skipped, one that comes twice runs
once. What it counts from its own creation (an interval without an anchor) is counted from 1970.
"""

from __future__ import annotations

from typing import Any

from perdure.core.run.run import OnExhausted
from perdure.core.schedule import Cadence, Gap, Misfire, Once, Overlap, at, cron, every
from perdure.core.schedule.definition import MOST_CAUGHT_UP
from perdure.engine.manifests.parse import StatedSchedule, StatedTask, Where, check_settings
from perdure.engine.manifests.problems import Noted
from perdure.engine.manifests.schema import read_instant, read_whole_target
from perdure.engine.runtime.input import choice, count, did_you_mean, flag, only_known, text
from perdure.engine.tasks.options import Retry
from perdure.engine.tasks.target import Target, read_target
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
_NO_JOBS = (
    "is refused: Perdure ends the run with the answer to the request, and would call a job done "
    "that has only begun; leave it out if that answer is all there is to wait for"
)


def is_wakeplane(value: Any) -> bool:
    return isinstance(value, dict) and (
        "timezone" in value or isinstance(value.get("schedule"), dict)
    )


def read_wakeplane(given: dict[str, Any], where: Where) -> StatedSchedule:
    """Raises InvalidInput, with all that is wrong, by the names of Perdure; `where` knows
    Wakeplane's."""
    noted = Noted()
    for field in given:
        with noted.noting():
            only_known([field], _KNOWN, "field of Wakeplane's manifest")
    given = {name: value for name, value in given.items() if value is not None}
    name, cadence = _name(given, noted), _cadence(given, noted)
    target, payload_name = _target(given, noted)
    settings = {**_policy(given, noted), **_retry(given, noted)}
    settings["payload"] = target.pop(payload_name, None)
    with noted.noting():
        settings["enabled"] = flag(given.get("enabled", False), "enabled")
    with noted.noting():
        check_settings(name, settings)
    where = where._replace(names={**NAMES, "payload": f"target.{payload_name}"})
    made = None
    with noted.noting():
        made = _made(target)
    noted.settle()
    own = None
    if made is not None:
        own = StatedTask(name=name, target=made, settings={}, policy=None, where=where)
    return StatedSchedule(
        name=name,
        task=name if own else target["workflow_id"],
        cadence=cadence,
        settings=settings,
        policy=None,
        where=where,
        own=own,
        notes=() if "enabled" in given else (f"{name} {_NOT_ENABLED}",),
    )


def _name(given: dict[str, Any], noted: Noted) -> str:
    with noted.noting():
        return text(_needed(given, "name"), "name")
    return ""


def _needed(given: dict[str, Any], name: str, inside: str = "") -> Any:
    if name not in given:
        raise InvalidInput(f"{inside}{name}", "is missing; Wakeplane needs it")
    return given[name]


def _part(given: dict[str, Any], name: str, known: tuple[str, ...], noted: Noted) -> dict[str, Any]:
    part = given.get(name, {})
    if not isinstance(part, dict):
        noted.add(InvalidInput(name, f"must be a mapping, not {part!r:.80}"))
        return {}
    for inner in sorted(part.keys() - set(known)):
        hint = did_you_mean(inner, known) or f"; there are: {', '.join(known)}"
        noted.add(InvalidInput(f"{name}.{inner}", f"is no field of Wakeplane's {name}{hint}"))
    return {inner: part[inner] for inner in known if part.get(inner) is not None}


def _cadence(given: dict[str, Any], noted: Noted) -> Cadence:
    """If it is wrong, that is noted, and it is any."""
    with noted.noting():
        _needed(given, "schedule")
    spec = _part(given, "schedule", _SPEC, noted)
    options: dict[str, Any] = {}
    with noted.noting():
        # Wakeplane wants a zone also where it means nothing.
        options["tz"] = cron("@daily", tz=text(_needed(given, "timezone"), "timezone")).tz
    for ours, theirs in (("start", "start_at"), ("end", "end_at")):
        with noted.noting():
            if theirs in given:
                options[ours] = read_instant(given[theirs], theirs)
    with noted.noting():
        return _when(spec, options) if "schedule" in given else _ANY
    return _ANY


_ANY = cron("@daily")


def _when(spec: dict[str, Any], options: dict[str, Any]) -> Cadence:
    window = {name: value for name, value in options.items() if name != "tz"}
    match spec.get("kind"):
        case "cron":
            expression = text(_needed(spec, "expr", "schedule."), "schedule.expr")
            return cron(expression, gap=Gap.SKIP, **options)
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


def _target(given: dict[str, Any], noted: Noted) -> tuple[dict[str, Any], str]:
    """What to do, and which of it is the payload."""
    with noted.noting():
        _needed(given, "target")
    target = given.get("target")
    kind = target.get("kind") if isinstance(target, dict) else None
    if kind not in _TARGETS:
        if target is not None:
            kinds = f"must be http, shell or workflow, not {kind!r:.80}"
            noted.add(InvalidInput("target.kind", kinds))
        return {}, "input"
    part = _part(given, "target", (*_TARGETS[kind], "http_job"), noted)
    if part.pop("http_job", None) is not None:
        noted.add(InvalidInput("target.http_job", _NO_JOBS))
    needed = {"http": ("url", "method"), "shell": ("command",), "workflow": ("workflow_id",)}
    for name in needed[kind]:
        with noted.noting():
            _needed(part, name, "target.")
    return part, {"http": "body", "shell": "input", "workflow": "input"}[kind]


def _made(target: dict[str, Any]) -> Target | None:
    """None if it is a task's, or if it was noted before that something is missing."""
    match target.get("kind"):
        case "http" if "url" in target:
            return read_whole_target(target, "target")
        case "shell" if "command" in target:
            return _command(target["command"], target.get("args", []))
        case "workflow" if "workflow_id" in target:
            text(target["workflow_id"], "target.workflow_id")
    return None


def _command(command: Any, args: Any) -> Target:
    if not isinstance(args, list):
        raise InvalidInput("target.args", f"must be a list, not {args!r:.80}")
    noted = Noted()
    for place, word in enumerate([command, *args], -1):
        if not isinstance(word, str):
            field = "target.command" if place < 0 else f"target.args[{place}]"
            problem = f"must be text, not {word!r:.80}; put it in quotes"
            noted.add(InvalidInput(field, problem))
    noted.settle()
    return read_target({"kind": "shell", "argv": [command, *args]})


def _policy(given: dict[str, Any], noted: Noted) -> dict[str, Any]:
    policy = _part(given, "policy", _POLICY, noted)
    overlap = policy.get("overlap", "forbid")
    misfire = policy.get("misfire", "run_once_if_late")
    settings: dict[str, Any] = {"max_concurrency": policy.get("max_concurrency", 1)}
    if overlap not in _OVERLAPS:
        problem = f"must be one of {', '.join(_OVERLAPS)}, not {overlap!r:.80}"
        noted.add(InvalidInput("overlap", problem))
    else:
        settings["overlap"] = choice(overlap, Overlap, "overlap")
    if misfire not in _MISFIRES:
        problem = f"must be one of {', '.join(_MISFIRES)}, not {misfire!r:.80}"
        noted.add(InvalidInput("misfire", problem))
    else:
        settings["misfire"] = _MISFIRES[misfire]
    if misfire == "catch_up":
        settings["catch_up_limit"] = MOST_CAUGHT_UP  # all of them
    with noted.noting():
        settings["timeout"] = count(policy.get("timeout_seconds", 300), "timeout")
    return settings


def _retry(given: dict[str, Any], noted: Noted) -> dict[str, Any]:
    """Nothing, if it is wrong and was noted."""
    retry = _part(given, "retry", _RETRY, noted)
    strategy = retry.get("strategy", "exponential")
    if strategy not in ("none", "exponential"):
        problem = f"must be none or exponential, not {strategy!r:.80}"
        noted.add(InvalidInput("retry.strategy", problem))
    initial = noted.taken(lambda: count(retry.get("initial_delay_seconds", 30), "retry.initial"))
    maximum = noted.taken(lambda: count(retry.get("max_delay_seconds", 900), "retry.maximum"))
    tries = noted.taken(lambda: count(retry.get("max_attempts", 0), "retry.max_attempts", least=0))
    if initial is None or maximum is None or tries is None:
        return {}
    if maximum < initial:
        least = f"must not be less than the initial delay, {initial}"
        noted.add(InvalidInput("retry.maximum", least))
        return {}
    with noted.noting():
        return {"retry": _made_retry(initial, maximum, 1 if strategy == "none" else tries)}
    return {}


def _made_retry(initial: int, maximum: int, tries: int) -> Retry:
    return Retry(
        max_attempts=max(tries, 1),
        initial=initial,
        maximum=maximum,
        factor=2,
        jitter=0,
        kind="exponential",
        on_exhausted=OnExhausted.DEAD_LETTER,
    )
