"""Every mistake in a JSON body, where the decoder stops at the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from perdure.engine.runtime.input import did_you_mean
from perdure.errors import InvalidInput
from perdure.errors.input import refuse_mistakes

MAX_PARTS = 1000
"""Fields or items of one object or array that are examined."""
MAX_MESSAGE = 500
"""Characters of the message about one field."""

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED = re.compile(r"field `(?P<name>[^`]*)`")


def misfit(error: msgspec.ValidationError, within: str = "") -> InvalidInput:
    """Return the mistake that a decoder has found in a body, or in the part `within` it."""
    match = _WHERE.match(_shorten(str(error)))
    assert match is not None
    problem, path = match["problem"], _join(within, match["path"] or "")
    named = _NAMED.search(problem)
    if named is not None:
        path = _join(path, named["name"])
    return InvalidInput(path or "body", problem)


def refuse_body(body: bytes, kind: Any, error: msgspec.ValidationError) -> None:
    """Raise InvalidInput with all mistakes in `body`, which is no `kind`. `error` is the one that
    the decoder has found; it stands alone if a later part of the body is not JSON."""
    try:
        refuse_mistakes(_mistakes(msgspec.Raw(body), kind, ""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise misfit(error) from error


def _mistakes(text: msgspec.Raw, kind: Any, path: str) -> Iterator[InvalidInput]:
    """Yield the mistakes of the parts of a value. If they have none, yield the value's own."""
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        own = misfit(error, path)
    else:
        return
    has_mistakes = False
    for mistake in _part_mistakes(text, kind, path):
        has_mistakes = True
        yield mistake
    if not has_mistakes:
        yield own


def _part_mistakes(text: msgspec.Raw, kind: Any, path: str) -> Iterator[InvalidInput]:
    opening = bytes(text).lstrip()[:1]
    container = _container_of(kind, opening)
    if container is None:
        return
    if opening == b"[":
        items = msgspec.json.decode(text, type=list[msgspec.Raw])[:MAX_PARTS]
        for index, item in enumerate(items):
            yield from _mistakes(item, get_args(container)[0], f"{path}[{index}]")
        return
    parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if isinstance(container, type) and issubclass(container, msgspec.Struct):
        yield from _field_mistakes(parts, container, path)
        return
    for name, part in islice(parts.items(), MAX_PARTS):
        yield from _mistakes(part, get_args(container)[1], _join(path, name))


def _field_mistakes(
    parts: dict[str, msgspec.Raw], kind: type[msgspec.Struct], path: str
) -> Iterator[InvalidInput]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    config = kind.__struct_config__
    for name in islice(parts, MAX_PARTS):
        if name in fields:
            yield from _mistakes(parts[name], fields[name].type, _join(path, name))
        elif config.forbid_unknown_fields and name != config.tag_field:
            shown = f"Object contains unknown field `{name:.80}`{did_you_mean(name, fields)}"
            yield InvalidInput(_join(path, _shorten(name)), shown)
    for name, field in fields.items():
        if field.required and name not in parts:
            yield InvalidInput(_join(path, name), f"Object missing required field `{name}`")


def _container_of(kind: Any, opening: bytes) -> Any:
    """Return the only type of objects or arrays among the types of a value, None if there is none
    or more than one."""
    wanted = {b"{": _takes_object, b"[": _takes_array}.get(opening)
    found = [] if wanted is None else [it for it in _options(kind) if wanted(it)]
    return found[0] if len(found) == 1 else None


def _options(kind: Any) -> list[Any]:
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [it for option in get_args(kind) for it in _options(option)]
    return [kind]


def _takes_object(kind: Any) -> bool:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_struct or get_origin(kind) is dict


def _takes_array(kind: Any) -> bool:
    return get_origin(kind) in (list, frozenset)


def _join(path: str, name: str) -> str:
    if not path or not name or name.startswith("["):
        return path + name
    return f"{path}.{name}"


def _shorten(message: str) -> str:
    """Cut the middle, where msgspec may quote a value of megabytes."""
    if len(message) <= MAX_MESSAGE:
        return message
    return f"{message[: MAX_MESSAGE // 2]}…{message[-MAX_MESSAGE // 2 :]}"
