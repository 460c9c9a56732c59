"""What PostgreSQL spells differently. Needs no driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

from perdure.storage.sql.queries import Query
from perdure.storage.sql.statements import Row

CHANNEL = "perdure"
"""Where hints are sent."""
MOST_BYTES = 7_900
"""PostgreSQL refuses a payload of 8,000."""

DOCUMENTS = {"state", "events"}
"""Columns of JSON text."""
BETWEEN_DOCUMENTS = "\x1e"
"""The record separator: JSON text has no such character, and no need of quotes around it."""

_ARRAY = re.compile(r":(\w+)::\w+\[\]")
_CURSOR = re.compile(r"\d{1,19}\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.\d{1,9}")


class PostgresDialect:
    """Instants are aware datetimes; a run's id is the UUID after its prefix."""

    first_cursor = "0.00000000-0000-0000-0000-000000000000.0"

    def is_cursor(self, text: str) -> bool:
        return _CURSOR.fullmatch(text) is not None

    def is_after(self, cursor: str, at: str, run_id: str, first_sequence: int) -> bool:
        seen_at, seen_run, seen_sequence = cursor.split(".")
        return (int(at), run_id, first_sequence) > (int(seen_at), seen_run, int(seen_sequence))

    def instant(self, at: datetime | None) -> datetime | None:
        return at

    def moment(self, stored: datetime | None) -> datetime | None:
        return None if stored is None else stored.astimezone(UTC)

    def key(self, run_id: str | None) -> str | None:
        return None if run_id is None else run_id[4:]

    def run_id(self, stored: str) -> str:
        return "run_" + stored.replace("-", "")


def columns(query: Query, rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as one text a column, which the server takes apart faster than anything by rows. What
    the query does not take as an array is the same for all rows, and sent once."""
    arrays = _arrays(query)
    sent: dict[str, Any] = {}
    for name, column in zip(query.parameters, zip(*rows, strict=True), strict=True):
        if name in DOCUMENTS:
            sent[name] = BETWEEN_DOCUMENTS.join(column)
        else:
            sent[name] = _array(column) if name in arrays else column[0]
    return sent


@cache
def _arrays(query: Query) -> frozenset[str]:
    return frozenset(_ARRAY.findall(query.text))


def _array(column: Row) -> str:
    """An array as PostgreSQL spells it: as in JSON, but for the brackets and most escapes."""
    text = msgspec.json.encode(column).decode()
    if "\\" in text:
        text = f"[{','.join(map(_element, column))}]"
    return f"{{{text[1:-1]}}}"


def _element(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return msgspec.json.encode(value).decode()
