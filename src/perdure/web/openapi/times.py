"""Instants in schemas: msgspec calls a `datetime` mere text, and generated clients would too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec.inspect as mi

Schema = dict[str, Any]


def mark_instants(
    types: Sequence[Any], schemas: Sequence[Schema], components: Mapping[str, Schema]
) -> None:
    """Give them their format: those that are a type by themselves, and every struct's fields."""
    inspected = mi.multi_type_info(types)
    for kind, schema in zip(inspected, schemas, strict=True):
        if _is_instant(kind):
            _mark(schema)
    fields = {(_title(it), field.encode_name) for it, field in _fields(inspected, set())}
    for component in components.values():
        for name, schema in component.get("properties", {}).items():
            if (component.get("title"), name) in fields:
                _mark(schema)


def _fields(kinds: Sequence[mi.Type], seen: set[int]) -> Iterator[tuple[mi.StructType, mi.Field]]:
    """Every field that is an instant, of every struct that can be reached. A type that is met
    again is the same object."""
    for kind in kinds:
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        if isinstance(kind, mi.StructType):
            yield from ((kind, field) for field in kind.fields if _is_instant(field.type))
        yield from _fields(_parts(kind), seen)


def _parts(kind: mi.Type) -> Sequence[mi.Type]:
    match kind:
        case mi.StructType():
            return [field.type for field in kind.fields]
        case mi.UnionType():
            return kind.types
        case mi.ListType() | mi.VarTupleType():
            return [kind.item_type]
        case mi.DictType():
            return [kind.value_type]
        case mi.Metadata():
            return [kind.type]
        case _:
            return []


def _is_instant(kind: mi.Type) -> bool:
    """One, several, or perhaps one."""
    if isinstance(kind, mi.StructType | mi.DictType):
        return False
    return isinstance(kind, mi.DateTimeType) or any(map(_is_instant, _parts(kind)))


def _title(kind: mi.StructType) -> str:
    """As the schema has it: `Items[datetime]`, not where each of them is defined."""
    arguments = getattr(kind.cls, "__args__", ())
    name = str(getattr(kind.cls, "__origin__", kind.cls).__name__)
    return f"{name}[{', '.join(it.__name__ for it in arguments)}]" if arguments else name


def _mark(schema: Schema) -> None:
    if schema.get("type") == "string":
        schema["format"] = "date-time"
    for inner in (*schema.get("anyOf", ()), schema.get("items")):
        if isinstance(inner, dict):
            _mark(inner)
