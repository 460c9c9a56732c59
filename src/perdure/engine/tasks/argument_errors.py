"""Why arguments do not fit, in words: which one, where in it, what was found there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import MsgspecError, inspect

from perdure.core.json_text import MAX_DEPTH
from perdure.errors import InvalidPayload

_WHERE = re.compile(
    r"^(?P<problem>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL
)
_FIELD = re.compile(r"(?:missing required|unknown) field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|(?P<unknown>\[\.\.\.\])")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

_NOWHERE: Any = object()

Check = Callable[[Any], object]
"""Raises for a value that does not fit."""


def misfit(
    task: str, error: Exception, arguments: Any, kind: Any, check: Check | None = None
) -> InvalidPayload:
    """What the decoder said, as the caller of `task` understands it. `arguments`, if there are
    any, tell which value it was, and `kind`, what they are to be, which would have fit. `check`,
    which raised `error`, tells the key of a value for which the decoder says `[...]`."""
    match = _WHERE.match(str(error))
    assert match is not None
    problem, path = match["problem"], match["path"] or ""
    pattern = path
    if check is not None:
        path = _name_keys(path, arguments, check)
    cause = error.__cause__
    if cause is not None and hasattr(cause, "errors"):
        return _of_model(task, path, cause)
    named = _FIELD.search(problem)
    if named is not None:
        path += f".{named['name']}"
        pattern += f".{named['name']}"
    value = _NOWHERE if named or match["key"] or arguments is None else _value_at(arguments, path)
    shown = "" if value is _NOWHERE or repr(value) in problem else f": {value!r:.80}"
    fitting = _fitting(kind, pattern) if problem.startswith("Invalid enum value") else ()
    known = f"; there are: {', '.join(map(repr, fitting))}" if fitting else ""
    return InvalidPayload(task, path.lstrip("."), f"{problem}{shown}{known}")


def _fitting(kind: Any, path: str) -> list[Any]:
    """The words that may stand there; none if that cannot be told."""
    kinds = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        kinds = [inner for outer in _each(kinds) for inner in _within(outer, step)]
    return [word for one in _each(kinds) for word in _words(one)]


def _each(kinds: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for kind in kinds:
        yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _within(kind: Any, step: re.Match[str]) -> Iterator[inspect.Type]:
    if step["name"]:
        fields = getattr(kind, "fields", ())
        yield from (field.type for field in fields if field.encode_name == step["name"])
    elif isinstance(kind, inspect.TupleType):
        yield kind.item_types[int(step["index"])]
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type
    elif hasattr(kind, "item_type"):
        yield kind.item_type


def _words(kind: inspect.Type) -> Iterator[Any]:
    if isinstance(kind, inspect.EnumType):
        yield from (member.value for member in kind.cls)
    elif isinstance(kind, inspect.LiteralType):
        yield from kind.values


def _of_model(task: str, path: str, error: Any) -> InvalidPayload:
    """A Pydantic model says itself what is wrong and where, of several things the first."""
    first = error.errors(include_url=False)[0]
    inside = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
    shown = f": {first['input']!r:.80}" if "input" in first else ""
    return InvalidPayload(task, f"{path}{inside}".lstrip("."), f"{first['msg']}{shown}")


def _value_at(arguments: Any, path: str) -> Any:
    value = arguments
    try:
        for step in _STEP.finditer(path):
            if step["unknown"]:
                return _NOWHERE
            value = value[step["name"]] if step["name"] else value[int(step["index"])]
    except (LookupError, TypeError):
        return _NOWHERE
    return value


def _name_keys(pattern: str, value: Any, check: Check) -> str:
    """Return a path in which each `[...]` is the key of the first entry that does not fit; the
    pattern itself if that cannot be found out."""
    path, keys = "", list[Any]()
    try:
        for step in _STEP.finditer(pattern):
            if step["unknown"]:
                keys.append(_misfit_key(pattern, value, keys, check))
                path += f".{keys[-1]!s:.80}"
            else:
                keys.append(step["name"] or int(step["index"]))
                path += step[0]
    except (LookupError, TypeError, AttributeError):
        return pattern
    return path


def _misfit_key(pattern: str, value: Any, keys: Sequence[Any], check: Check) -> Any:
    """Return the key that is refused at this path also if its dict has no other. Raises
    LookupError if there is none."""
    entries = value
    for key in keys:
        entries = entries[key]
    for key, item in entries.items():
        try:
            check(_replaced(value, keys, {key: item}))
        except (MsgspecError, ValueError) as error:
            if str(error).endswith(f" - at `${pattern}`"):
                return key
    raise LookupError(pattern)


def _replaced(value: Any, keys: Sequence[Any], new: Any) -> Any:
    """Return a copy with `new` at this place."""
    if not keys:
        return new
    first, *rest = keys
    inner = _replaced(value[first], rest, new)
    if isinstance(value, dict):
        return {**value, first: inner}
    return [*value[:first], inner, *value[first + 1 :]]


def unkeepable(value: Any, path: str = "", depth: int = 0) -> str:
    """Where a plain value holds what JSON cannot keep: a number that is none, a lone surrogate,
    a key that is no text, or more and more of itself."""
    if isinstance(value, float) and not math.isfinite(value):
        return path
    if isinstance(value, str) and _SURROGATE.search(value):
        return path
    parts: Any = ()
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return path
    if isinstance(value, dict):
        parts = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"{path}[{number}]", item) for number, item in enumerate(value))
    if depth > MAX_DEPTH:
        return path.partition(".")[0].partition("[")[0]
    return next((found for at, it in parts if (found := unkeepable(it, at, depth + 1))), "")
