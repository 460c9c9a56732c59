"""A stored schedule, or target, said as a manifest would say it; and what differs between two.

What is as by default is left out. What is said, read again, is what it was made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, assert_never

import msgspec
import yaml

from perdure.core.json_text import decode_value
from perdure.core.run.run import OnLeaseExpired, Policy
from perdure.core.schedule import Cadence, Cron, Definition, Interval, Once, rfc3339
from perdure.engine.manifests.schema import say_length
from perdure.engine.manifests.yaml_lines import plain
from perdure.engine.tasks.catalogue import TaskEntry
from perdure.engine.tasks.options import Retry
from perdure.errors import InvalidInput

Said = dict[str, Any]

_PRINTABLE = re.compile("[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]*")
"""What no line of YAML ends with or hides."""

_SETTINGS = (
    *("misfire", "misfire_grace", "catch_up_limit", "catch_up_age", "overlap", "max_concurrency"),
    *("queue", "priority", "ttl", "concurrency_key", "tags", "enabled"),
)


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Differing(msgspec.Struct, frozen=True):
    """A field, as it is stored and as it is stated; none: it is not there."""

    field: str
    old: Any = None
    new: Any = None

    @property
    def shown(self) -> str:
        """What is stated."""
        return _shown(self.new)

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.old)} → {self.shown}"


def say_schedule(definition: Definition, task: Policy, usual: Mapping[str, Any] = _NOTHING) -> Said:
    """`task` and `usual`: the rules of its task, and of schedules, which hold where this one says
    nothing."""
    payload = decode_value(definition.payload_json)
    return {
        "name": definition.id,
        **say_cadence(definition.cadence),
        "task": definition.task,
        **({"payload": payload} if payload else {}),
        **_not_default(definition, _SETTINGS, usual),
        **say_policy(definition.policy, task),
    }


def say_cadence(cadence: Cadence) -> Said:
    match cadence:
        case Cron():
            when = {"cron": cadence.expression}
            return {**when, **_not_default(cadence, cadence.__struct_fields__[1:])}
        case Interval():
            when = {"every": say_length(cadence.length)}
            return {**when, **_not_default(cadence, cadence.__struct_fields__[1:])}
        case Once():
            return {"at": rfc3339(cadence.instant), **_not_default(cadence, ("jitter",))}
        case _:
            assert_never(cadence)


def say_task(entry: TaskEntry, usual: Policy, queue: str) -> Said:
    """`usual` and `queue`: the rules and the queue of a task that says nothing."""
    lost = entry.policy.on_lease_expired
    base = msgspec.structs.replace(usual, on_lease_expired=lost)
    return {
        "name": entry.name,
        "target": msgspec.to_builtins(entry.target),
        **({} if entry.queue == queue else {"queue": entry.queue}),
        **_not_default(entry, ("priority", "ttl")),
        **({} if lost is OnLeaseExpired.RETRY else {"on_lease_expired": str(lost)}),
        **(say_policy(entry.policy, base) if entry.policy != base else {}),
    }


def say_policy(policy: Policy | None, base: Policy) -> Said:
    """The shortest of: what differs from the base, all that `retry` can say, all there is."""
    if policy is None:
        return {}
    said, usual = _retry_of(policy), _retry_of(base)
    differing = {name: value for name, value in said.items() if value != usual.get(name)}
    timeout = None if policy.timeout == base.timeout else policy.timeout
    for retry in (differing, said):
        if (retry or timeout) and _remade(retry, timeout, base) == policy:
            return _said_of(retry, timeout)
    return {"policy": msgspec.to_builtins(policy)}


def differing(old: Said, new: Said) -> list[Differing]:
    """Field by field, as deep as both are mappings."""
    before, after = dict(_flat(old)), dict(_flat(new))
    names = [*before, *(name for name in after if name not in before)]
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [Differing(*one) for one in pairs if not _same(one[1], one[2])]


def added(said: Said) -> tuple[Differing, ...]:
    """All of it, but for its name."""
    return tuple(one for one in differing({}, said) if one.field != "name")


def to_yaml(said: Said) -> str:
    """As `lines` reads it."""
    text: str = yaml.dump(
        said, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes whatever our reader would not take for text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=_style(data))


_Dumper.add_representer(str, _Dumper.text)


def _style(text: str) -> str | None:
    if not _PRINTABLE.fullmatch(text):
        return '"'
    if "\n" in text:
        return "|"
    try:
        is_text = isinstance(plain(text), str) and text != "<<"
    except ValueError:  # a number too long to be one
        is_text = False
    return None if is_text else "'"


def _not_default(
    value: msgspec.Struct, fields: tuple[str, ...], usual: Mapping[str, Any] = _NOTHING
) -> Said:
    defaults = {field.name: field.default for field in msgspec.structs.fields(value)} | {**usual}
    given = {name: getattr(value, name) for name in fields}
    return {name: _plainly(one) for name, one in given.items() if one != defaults[name]}


def _plainly(value: Any) -> Any:
    if isinstance(value, timedelta):
        return say_length(value)
    return rfc3339(value) if isinstance(value, datetime) else msgspec.to_builtins(value)


def _retry_of(policy: Policy) -> Said:
    backoff = policy.backoff
    said = {
        "max_attempts": policy.max_attempts,
        "initial": backoff.initial,
        "maximum": backoff.maximum,
        "factor": backoff.factor,
        "jitter": backoff.spread,
        "kind": str(backoff.kind),
        "delays": backoff.delays or None,
        "on_exhausted": policy.on_exhausted and str(policy.on_exhausted),
        "poison_threshold": policy.poison_threshold,
    }
    return {name: value for name, value in said.items() if value is not None}


def _remade(retry: Said, timeout: timedelta | None, base: Policy) -> Policy | None:
    """What one would read of it; none if it is refused, because half of it says nothing."""
    try:
        made = Retry(**retry).applied_to(base) if retry else base
    except InvalidInput:
        return None
    return made if timeout is None else msgspec.structs.replace(made, timeout=timeout)


def _said_of(retry: Said, timeout: timedelta | None) -> Said:
    said: Said = {}
    if retry:
        delays = [say_length(delay) for delay in retry.get("delays", ())]
        plainly = {name: _plainly(value) for name, value in retry.items()}
        said["retry"] = {**plainly, **({"delays": delays} if delays else {})}
    return {**said, **({} if timeout is None else {"timeout": say_length(timeout)})}


def _flat(said: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _same(one: Any, other: Any) -> bool:
    """As JSON: true is not 1, and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"
