"""Splits what a client sends into requests that a server takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Half of what a server takes."""


def in_parts(items: Sequence[T], size_of: Callable[[T], int], most: int) -> list[list[T]]:
    """Return the items in order, in parts of at most `most` items and `MAX_REQUEST_BYTES`; an
    item that is larger than that is alone in its part."""
    parts: list[list[T]] = []
    room = 0
    for item in items:
        size = size_of(item)
        if not parts or size > room or len(parts[-1]) == most:
            parts.append([])
            room = MAX_REQUEST_BYTES
        parts[-1].append(item)
        room -= size
    return parts
