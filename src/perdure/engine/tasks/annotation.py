"""Which types arguments and results may have, and which keys a value may have for its type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from msgspec import inspect as types

from perdure.errors import InvalidTask

_KEYS = (
    types.AnyType,
    types.StrType,
    types.IntType,
    types.FloatType,
    types.EnumType,
    types.LiteralType,
    types.UUIDType,
    types.DateType,
    types.DateTimeType,
    types.DecimalType,
)
_ONE_ITEM = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType)
_OBJECT = (types.DataclassType, types.TypedDictType, types.StructType, types.NamedTupleType)
_CLOSED = (types.DataclassType, types.TypedDictType)
"""Types that say which keys there are, and have no word on others. (A Struct and a model do.)"""

_USE = "use plain types, a dataclass, a TypedDict, a msgspec Struct or a Pydantic model"


def check_annotation(hint: Any, where: str) -> types.Type:
    """What `hint` means to the decoder. Raises InvalidTask, naming the type that cannot be."""
    try:
        info = types.type_info(hint)
    except TypeError as error:
        raise InvalidTask(where, f"{error}; {_USE}") from error
    for part in walk(info):
        if isinstance(part, types.CustomType) and not is_supported(part.cls):
            name = f"{part.cls.__module__}.{part.cls.__qualname__}"
            raise InvalidTask(where, f"a value of type {name} cannot be kept as JSON; {_USE}")
        if isinstance(part, types.DictType) and not isinstance(part.key_type, _KEYS):
            key = type(part.key_type).__name__.removesuffix("Type").lower()
            raise InvalidTask(where, f"a JSON object cannot have keys of type {key}; use text")
    return info


def is_supported(kind: type) -> bool:
    """Types that the decoder does not know, and we do."""
    return kind is object or is_model(kind) or issubclass(kind, PurePath)


def is_model(kind: type) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def has_keys_that_are_no_text(info: types.Type) -> bool:
    text = (types.AnyType, types.StrType)
    return any(
        isinstance(p, types.DictType) and not isinstance(p.key_type, text) for p in walk(info)
    )


def is_closed(info: types.Type) -> bool:
    """Whether some key of a value could be silently lost."""
    return any(isinstance(part, _CLOSED) for part in walk(info))


def walk(info: types.Type, seen: set[int] | None = None) -> Iterator[types.Type]:
    """A type and all that it is made of, each once: a type may hold itself."""
    seen = set() if seen is None else seen
    if id(info) in seen:
        return
    seen.add(id(info))
    yield info
    for part in _parts(info):
        yield from walk(part, seen)


def _parts(info: types.Type) -> tuple[types.Type, ...]:
    match info:
        case types.Metadata(type=inner):
            return (inner,)
        case types.UnionType(types=members):
            return members
        case types.TupleType(item_types=items):
            return items
        case types.DictType(key_type=key, value_type=value):
            return (key, value)
        case _ if isinstance(info, _ONE_ITEM):
            return (info.item_type,)
        case _ if isinstance(info, _OBJECT):
            return tuple(field.type for field in info.fields)
        case _:
            return ()


def unknown_key(info: types.Type, value: Any, path: str) -> str | None:
    """Where `value` has a key that its type does not know, if it has one."""
    found = (unknown_key(part, item, where) for part, item, where in _inside(info, value, path))
    if isinstance(info, _CLOSED) and isinstance(value, dict):
        known = {field.encode_name for field in info.fields}
        extra = [key for key in value if key not in known]
        if extra:
            return f"{path}.{extra[0]}"
    return next((where for where in found if where is not None), None)


def _inside(info: types.Type, value: Any, path: str) -> Iterator[tuple[types.Type, Any, str]]:
    """The parts of a value, each with its type and where it is."""
    match info, value:
        case types.Metadata(type=inner), _:
            yield inner, value, path
        case types.UnionType(types=members), _:
            structs = sum(isinstance(member, types.StructType) for member in members)
            if structs < 2:  # of several, the tag decides, and each has a word on other keys
                yield from ((member, value, path) for member in members)
        case types.DictType(value_type=inner), dict():
            yield from ((inner, item, f"{path}.{key}") for key, item in value.items())
        case _, list() | tuple() if isinstance(info, _ONE_ITEM):
            yield from ((info.item_type, item, f"{path}[{i}]") for i, item in enumerate(value))
        case types.TupleType(item_types=items), list() | tuple():
            pairs = zip(items, value, strict=True)  # as many as it says: that was checked before
            yield from ((*pair, f"{path}[{i}]") for i, pair in enumerate(pairs))
        case _, dict() if isinstance(info, _OBJECT):
            for field in info.fields:
                if field.encode_name in value:
                    yield field.type, value[field.encode_name], f"{path}.{field.encode_name}"
