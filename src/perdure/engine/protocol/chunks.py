"""Splits what a client sends into requests that a server takes, and what a server reads at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Half of what a server takes."""


def count_one(item: object) -> int:
    """The size of what is counted, not weighed."""
    return 1


def in_parts(
    items: Sequence[T],
    size_of: Callable[[T], int],
    most: int,
    most_size: int = MAX_REQUEST_BYTES,
) -> list[list[T]]:
    """Return the items in order, in parts of at most `most` items and `most_size` in all; an
    item that is larger than that is alone in its part."""
    parts: list[list[T]] = []
    room = 0
    for item in items:
        size = size_of(item)
        if not parts or size > room or len(parts[-1]) == most:
            parts.append([])
            room = most_size
        parts[-1].append(item)
        room -= size
    return parts
