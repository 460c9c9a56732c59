"""Answers for people: tables, and values as one reads them."""

from __future__ import annotations

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


def shown(value: Any, widest: int | None = WIDEST) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + "Z"
    text = str(value)
    if widest is None:
        return text
    line = " ".join(text.split())
    return line if len(line) <= widest else f"{line[: widest - 1]}…"
