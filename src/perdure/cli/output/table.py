"""Answers for people: tables, and values as one reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

NOTHING = "-"
WIDEST = 60


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as they need to be; the last one may be long."""
    lines = [list(headings), *([shown(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings) - 1)]
    return "\n".join(
        "  ".join([*(f"{v:<{w}}" for v, w in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def pairs(values: dict[str, Any]) -> str:
    """One line for each that there is."""
    there = {name: value for name, value in values.items() if value not in (None, "", {}, [])}
    widest = max((len(name) for name in there), default=0)
    return "\n".join(f"{name:<{widest}}  {shown(value, None)}" for name, value in there.items())


def format_json(value: Any) -> str:
    """Format a value as JSON, with every character that a terminal can show."""
    return json.dumps(value, ensure_ascii=False, default=str)


def format_value(value: Any) -> str:
    """Format text as it is, and what JSON has another form for as JSON."""
    is_json = isinstance(value, dict | list | tuple | bool) or value is None
    return format_json(value) if is_json else str(value)


def shown(value: Any, widest: int | None = WIDEST) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + "Z"
    text = format_value(value)
    if widest is None:
        return text
    line = " ".join(text.split())
    return line if len(line) <= widest else f"{line[: widest - 1]}…"
