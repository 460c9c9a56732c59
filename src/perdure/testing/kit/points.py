"""`point`: a boundary that code marks itself, and that means nothing outside of a test."""

from __future__ import annotations

from typing import Protocol


class HasPoints(Protocol):
    def point(self, name: str) -> None: ...


active: list[HasPoints] = []
"""The kits that are open, the innermost last."""


def point(name: str) -> None:
    """Here a worker may be killed by a test. Elsewhere nothing happens."""
    if active:
        active[-1].point(name)
