"""Checks of decoded requests that types alone cannot make: they are as strict as our own client.

Instants are UTC and lie within `YEARS`; durations are bounded; numbers fit into the database's
columns; text has no NUL and no lone surrogates; JSON has a bounded depth and size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from perdure.core.json_text import check_text, encode_value
from perdure.core.run.backoff import LONGEST
from perdure.errors import InvalidInput

YEARS = range(1970, 3000)
MAX_INT = 2**31 - 1
MAX_ITEMS = 10_000
"""Items of one list, where its type names no smaller maximum."""
MAX_JSON = 4 * 1024 * 1024
"""Bytes of one JSON value in a request."""


def check_message(value: Any, field: str = "", json_limit: int = MAX_JSON) -> None:
    """Raise InvalidInput, naming the field, for what no client of ours would send."""
    pending = [(field, value)]
    while pending:
        path, each = pending.pop()
        pending.extend(_parts(path, each, json_limit))


def _parts(path: str, value: Any, limit: int) -> Iterator[tuple[str, Any]]:
    """Check one value, and yield those inside it that are still to be checked."""
    if isinstance(value, msgspec.Raw):
        check_text(bytes(value), field=path, limit=limit)
    elif isinstance(value, msgspec.Struct):
        prefix = f"{path}." if path else ""
        for name in value.__struct_fields__:
            yield f"{prefix}{name}", getattr(value, name)
    elif isinstance(value, dict):
        yield from _of_dict(path, value, limit)
    elif isinstance(value, list | tuple | frozenset):
        if len(value) > MAX_ITEMS:
            raise InvalidInput(path, f"must have {MAX_ITEMS} items at most, not {len(value)}")
        for index, each in enumerate(value):
            yield f"{path}[{index}]", each
    else:
        _check_plain(path, value)


def _of_dict(path: str, value: dict[Any, Any], limit: int) -> Iterator[tuple[str, Any]]:
    if any(isinstance(each, msgspec.Struct | datetime) for each in value.values()):
        for key, each in value.items():
            _check_text(path, key)
            yield f"{path}.{key!s:.80}", each
    else:
        encode_value(value, field=path, limit=limit)


def _check_plain(path: str, value: Any) -> None:
    if isinstance(value, bool | Enum) or value is None:
        return
    if isinstance(value, str):
        _check_text(path, value)
    elif isinstance(value, int):
        if not -MAX_INT <= value <= MAX_INT:
            raise InvalidInput(
                path, f"must lie between {-MAX_INT} and {MAX_INT}, not {value!r:.40}"
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(path, f"must be a finite number, not {value!r}")
    elif isinstance(value, datetime):
        check_instant(path, value)
    elif isinstance(value, timedelta) and abs(value) > LONGEST:
        raise InvalidInput(path, f"must be at most {LONGEST.days} days, not {value}")


def check_instant(path: str, value: datetime) -> None:
    """Raise InvalidInput unless it is in UTC and within `YEARS`."""
    if value.utcoffset() != timedelta(0):
        raise InvalidInput(path, "must be an instant in UTC, e.g. 2026-03-01T09:30:00Z")
    if value.year not in YEARS:
        problem = f"must lie between the years {YEARS.start} and {YEARS.stop - 1}"
        raise InvalidInput(path, f"{problem}, not {value.year}")


def _check_text(path: str, value: Any) -> None:
    text = str(value)
    if "\0" in text:
        raise InvalidInput(path, "must not hold the character NUL")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(path, "holds a lone surrogate, which is not Unicode text") from error
