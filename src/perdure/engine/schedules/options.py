"""What somebody says about a schedule, checked and made a definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.decide.create import NewRun
from perdure.core.json_text import encode_value
from perdure.core.run.run import OnLeaseExpired, Policy
from perdure.core.schedule import (
    Cadence,
    Cron,
    Definition,
    Interval,
    Misfire,
    Once,
    Overlap,
    check_definition,
    merge_cadence,
)
from perdure.engine.definition.task import Task
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import Duration, choice, duration, flag, only_known, some_time
from perdure.engine.tasks.catalogue import TaskEntry, check_payload
from perdure.engine.tasks.concurrency_key import KeyRules, derived_key
from perdure.engine.tasks.options import RETRY_FIELDS, Retry, check_retry, make_policy
from perdure.errors import InvalidInput


class ScheduleKeywords(TypedDict, total=False):
    """What a schedule may say besides its cadence and its task. What is none comes from the task.

    `payload` holds the arguments. `misfire`: skip, run_once, catch_up, for occurrences decided
    more than `misfire_grace` late; `overlap`: forbid, allow, skip, queue_latest, replace.
    """

    payload: Mapping[str, Any] | None
    misfire: Misfire | str
    misfire_grace: Duration
    catch_up_limit: int
    catch_up_age: Duration | None
    overlap: Overlap | str
    max_concurrency: int
    queue: str | None
    priority: int | None
    retry: Retry | None
    timeout: Duration | None
    ttl: Duration | None
    concurrency_key: str | None
    tags: dict[str, str] | None
    enabled: bool


class Target(msgspec.Struct, frozen=True):
    """What a schedule needs to know of its task: its name, its policy, what fits it, and how its
    runs get their keys."""

    task: str
    policy: Policy
    encode: Callable[[Mapping[str, Any]], msgspec.Raw]
    key_rules: KeyRules | None = None


def make_definition(
    name: str,
    cadence: Cadence,
    target: Target,
    said: Mapping[str, Any],
    usual: Mapping[str, Any] = MappingProxyType({}),
) -> Definition:
    """A definition of which all is said, or as it is `usual`. Raises InvalidInput."""
    plain = Definition(id=name, task=target.task, cadence=cadence)
    return changed_definition(plain, target, {"payload": None, **usual, **said})


def changed_definition(
    definition: Definition, target: Target, said: Mapping[str, Any], cadence: Cadence | None = None
) -> Definition:
    """Return the definition with what is said changed, and nothing else: None is the task's rule
    again, and a cadence of the same kind keeps the options that it does not name. Raises
    InvalidInput."""
    only_known(said, ScheduleKeywords.__annotations__, "setting of a schedule")
    changes: dict[str, Any] = {
        name: _CHECKS[name](value, name) if name in _CHECKS and value is not None else value
        for name, value in said.items()
        if name not in ("payload", "retry", "timeout")
    }
    if "payload" in said or target.task != definition.task:
        # Another task may not take the payload that was right for this one.
        kept = msgspec.json.decode(definition.payload_json)
        changes["payload_json"] = target.encode(_payload(said.get("payload", kept)))
    if "retry" in said or "timeout" in said:
        changes["policy"] = _policy(definition.policy or target.policy, target.policy, said)
    if cadence is not None:
        changes["cadence"] = merge_cadence(cadence_of(cadence), definition.cadence)
    made = replace(definition, task=target.task, **changes)
    cadence_of(made.cadence)
    check_definition(made)
    if target.key_rules is not None and _KEY_SOURCES & changes.keys():
        scheduled_key(target.key_rules, made)
    return made


def target_of_entry(entry: TaskEntry, limit: int) -> Target:
    """A task whose code is elsewhere: its payload is checked as far as its schema goes."""

    def encode(payload: Mapping[str, Any]) -> msgspec.Raw:
        check_payload(entry.name, entry.payload_schema or {}, payload)
        return encode_value(dict(payload), limit=limit)

    return Target(entry.name, entry.policy, encode, entry)


def target_of(tasks: Mapping[str, Task[..., Any]], name: str, limit: int) -> Target | None:
    """One of these tasks, whose code is here, if it is one."""
    task = tasks.get(name)
    if task is None:
        return None
    return Target(
        name,
        task.settings.policy,
        lambda payload: task.signature.encode(dict(payload), limit),
        task.settings,
    )


def unknown_target(defaults: Defaults, name: str) -> Target:
    """A task that nobody has made known yet: its payload is taken as it is."""
    limit = defaults.payload_limit
    return Target(
        name, usual_policy(defaults), lambda payload: encode_value(dict(payload), limit=limit)
    )


def usual_policy(defaults: Defaults) -> Policy:
    """The rules of a task that says nothing."""
    return make_policy(
        defaults, None, timeout=None, lease_ttl=None, on_lease_expired=OnLeaseExpired.RETRY
    )


def scheduled_key(rules: KeyRules, definition: Definition) -> str | None:
    """Return the key of a schedule's runs. Schedulers have no code: a function does not help.

    Raises InvalidInput if the task needs a key, and neither the schedule nor a path gives it.
    """
    return definition.concurrency_key or derived_key(rules, definition.payload_json)


def asked_of(entry: TaskEntry, key: str | None) -> NewRun:
    """What a plain trigger of a task asks for, without its payload."""
    return NewRun(
        task=entry.name,
        queue=entry.queue,
        policy=entry.policy,
        priority=entry.priority,
        ttl=entry.ttl,
        concurrency_key=key,
        task_version=entry.version,
    )


def cadence_of(cadence: object, field: str = "cadence") -> Cadence:
    """Raises InvalidInput for anything else."""
    if not isinstance(cadence, Cron | Interval | Once):
        hint = f"cron({cadence!r})" if isinstance(cadence, str) else "every(minutes=5)"
        problem = f"must be made by cron, every or at, e.g. {hint}, not {cadence!r:.80}"
        raise InvalidInput(field, problem)
    return cadence


def _payload(payload: Any) -> Mapping[str, Any]:
    if payload is None:
        return {}
    if not isinstance(payload, Mapping):
        raise InvalidInput("payload", f"must be a dict of arguments, not {payload!r:.80}")
    return payload


def _policy(policy: Policy, tasks_policy: Policy, said: Mapping[str, Any]) -> Policy | None:
    """Return the policy with what is said about it; None if all of it is the task's again."""
    retry, timeout = said.get("retry", UNSET), said.get("timeout", UNSET)
    if retry is None:
        policy = replace(policy, **{name: getattr(tasks_policy, name) for name in RETRY_FIELDS})
    elif retry is not UNSET:
        policy = check_retry(retry).applied_to(policy)
    if timeout is None:
        policy = replace(policy, timeout=tasks_policy.timeout)
    elif timeout is not UNSET:
        policy = replace(policy, timeout=some_time(timeout, "timeout"))
    is_reset = retry is None or timeout is None
    is_all_reset = retry is None and timeout is None
    return None if is_all_reset or (is_reset and policy == tasks_policy) else policy


_KEY_SOURCES = {"payload_json", "concurrency_key"}

_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "misfire": lambda value, field: choice(value, Misfire, field),
    "overlap": lambda value, field: choice(value, Overlap, field),
    "misfire_grace": duration,
    "catch_up_age": some_time,
    "ttl": some_time,
    "enabled": flag,
}
