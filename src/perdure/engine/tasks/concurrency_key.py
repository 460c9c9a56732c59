"""The concurrency key of a run: given by the trigger, or derived from the payload."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, Protocol

import msgspec

from perdure.core.json_text import check_label
from perdure.core.limits.rates import Rate
from perdure.engine.runtime.input import did_you_mean
from perdure.errors import InvalidInput

FIELD = "concurrency_key"

KeyFunction = Callable[..., Any]
"""Takes the arguments of a run by name, and returns its key."""


class KeyRules(Protocol):
    """What a task's definition says about keys: its settings, or its entry in the catalogue."""

    @property
    def name(self) -> str: ...
    @property
    def concurrency_key(self) -> str | None: ...
    @property
    def has_key_function(self) -> bool: ...
    @property
    def concurrency_per_key(self) -> int | None: ...
    @property
    def rate_per_key(self) -> Rate | None: ...


def derives_key(rules: KeyRules) -> bool:
    """Return whether the key of a run depends on its payload."""
    return rules.concurrency_key is not None or rules.has_key_function


def derived_key(
    rules: KeyRules, payload: msgspec.Raw, function: Callable[[], Any] | None = None
) -> str | None:
    """Return the key of a run whose trigger gives none; None if the task needs none.

    `function` calls the task's key function with the payload; code that does not have the task
    leaves it out. Raises InvalidInput if the task needs a key that cannot be derived.
    """
    missing = "its definition does not derive one"
    key = None
    if rules.concurrency_key is not None:
        key = _key_text(rules, _value_at(rules.concurrency_key, payload))
        missing = f"the payload has no value at {rules.concurrency_key!r:.80}"
    elif rules.has_key_function:
        key = None if function is None else _key_text(rules, _called(rules, function))
        missing = "its key function "
        missing += "is not known here" if function is None else "returned None"
    if key is None and (rules.concurrency_per_key or rules.rate_per_key) is not None:
        limits = f"task {rules.name!r:.80} has a limit per key and needs a key, but {missing}"
        raise InvalidInput(FIELD, f"{limits}; pass concurrency_key{_advice(rules)}")
    return key


def _advice(rules: KeyRules) -> str:
    """Return the advice beside passing a key. For a path, it names the value that is missing."""
    if rules.concurrency_key is not None:
        return ""
    return ", or derive it in the definition: concurrency_key='user_id'"


def check_key_path(path: str) -> str:
    """Raise InvalidInput unless `path` names a value of a payload, e.g. "customer.id"."""
    if not all(check_label(path, FIELD).split(".")):
        problem = f"must be a path in the payload, e.g. 'customer.id', not {path!r:.80}"
        raise InvalidInput(FIELD, problem)
    return path


def check_key_rule(rule: object) -> None:
    """Raise InvalidInput unless it is a path in the payload, or a function of the arguments."""
    if rule is None or callable(rule):
        return
    if not isinstance(rule, str):
        problem = "must be a path in the payload, e.g. 'user_id', or a function of the arguments"
        raise InvalidInput(FIELD, f"{problem}, not {rule!r:.80}")
    check_key_path(rule)


def check_key_arguments(rule: str | KeyFunction | None, names: Collection[str]) -> None:
    """Raise InvalidInput if a task with these parameters cannot have this path or function."""
    if rule is None:
        return
    if isinstance(rule, str):
        first = rule.partition(".")[0]
        if first not in names:
            hint = did_you_mean(first, names)
            raise InvalidInput(FIELD, f"the task has no parameter {first!r:.80}{hint}")
        return
    try:
        inspect.signature(rule).bind(**dict.fromkeys(names))
    except TypeError as error:
        call = f"the function is called with the arguments {', '.join(names)} by name"
        advice = "name those it needs and take the others as **_"
        raise InvalidInput(FIELD, f"{call}, but {error}; {advice}") from error
    except ValueError:  # a builtin without a signature
        return


def _value_at(path: str, payload: msgspec.Raw) -> Any:
    value = msgspec.json.decode(payload)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _called(rules: KeyRules, function: Callable[[], Any]) -> Any:
    try:
        return msgspec.to_builtins(function())
    except Exception as error:
        cause = f"the key function of task {rules.name!r:.80} failed"
        raise InvalidInput(FIELD, f"{cause}: {type(error).__name__}: {error}") from error


def _key_text(rules: KeyRules, value: Any) -> str | None:
    if value is None:
        return None
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return check_label(value, FIELD)
    problem = f"of task {rules.name!r:.80} must be text or a whole number, not {value!r:.80}"
    raise InvalidInput(FIELD, problem)
