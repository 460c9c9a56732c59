"""Schemas that client generators accept.

msgspec's schemas are valid JSON Schema, but generators expect more: every array names its items, no
schema is `false`, and every component has a title of its own, which becomes a class name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_WORD = re.compile(r"[A-Za-z0-9]+")


def simplify(document: Schema) -> Schema:
    """Return the OpenAPI document with schemas that generators accept."""
    components: Mapping[str, Schema] = document["components"]["schemas"]
    names = {name: _class_name(name) for name in components}
    references = {_reference(old): _reference(new) for old, new in names.items()}
    simple: Schema = _simplify(document, references)
    schemas = simple["components"]["schemas"]
    simple["components"]["schemas"] = {
        new: schemas[old] | {"title": new} for old, new in names.items()
    }
    return simple


def _class_name(name: str) -> str:
    """Return `WebhookGap` for `perdure.core.webhook.Gap`, `ItemsRunView` for `Items_RunView_`."""
    words = _WORD.findall(".".join(name.split(".")[-2:]))
    return "".join(word[0].upper() + word[1:] for word in words)


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


def _simplify(value: Any, references: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_simplify(item, references) for item in value]
    if not isinstance(value, dict):
        return value
    simple = {name: _simplify(inner, references) for name, inner in value.items()}
    if simple.get("$ref") in references:
        simple["$ref"] = references[simple["$ref"]]
    return _with_items(simple) if simple.get("type") == "array" else simple


def _with_items(array: Schema) -> Schema:
    """Return an array whose items have one schema. That of a fixed tuple accepts each of its
    places."""
    places = array.get("prefixItems", [])
    different = [it for index, it in enumerate(places) if it not in places[:index]]
    if not different:
        return {"items": {}} | array
    items = different[0] if len(different) == 1 else {"anyOf": different}
    return {name: it for name, it in array.items() if name != "prefixItems"} | {"items": items}
