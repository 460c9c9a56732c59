"""The reference of manifests, made from the table that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.engine.manifests.schema import (
    CADENCE,
    INSTANT,
    LENGTH,
    RETRY,
    SETTINGS,
    TASK,
    Field,
)

HEAD = """# Manifests: every field

Made from the code by `make docs`. How manifests are used stands in
[Schedules in files](../manifests.md); `perdure schedules schema` prints the same as JSON Schema.
"""


def manifests() -> str:
    own = {
        "name": Field({"type": "string"}, "its name, which is its identity; it must be there"),
        "task": Field({"type": "string"}, "the task it runs, by name; or:"),
        "target": TASK["target"],
    }
    parts = [
        ("## A schedule", own),
        ("When it runs: one of `cron`, `every` and `at`, with what fits it.", CADENCE),
        ("How it runs; what is left out is as by default, or as the task says.", SETTINGS),
        ("## retry", RETRY),
        ("## A task", TASK),
    ]
    return HEAD + "".join(f"\n{title}\n\n{_table(fields)}" for title, fields in parts)


def _table(fields: Mapping[str, Field]) -> str:
    rows = [
        f"| `{name}` | {_taken(field.schema)} | {field.about} |" for name, field in fields.items()
    ]
    return "\n".join(["| field | takes | |", "|---|---|---|", *rows, ""])


def _taken(schema: Mapping[str, Any]) -> str:
    """In words."""
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema == LENGTH:
        return "a length"
    if schema == INSTANT:
        return "an instant"
    if "$ref" in schema:
        return "a mapping, see below"
    return _WORDS[schema["type"]]


_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true, false",
    "object": "a mapping",
    "array": "a list of lengths",
}
