"""What those ask who only want to know. Nothing is decided by the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from perdure.core.limits.admission import Gate
from perdure.core.run.run import Run

if TYPE_CHECKING:
    from perdure.core.explain.health import Neglect, Vitals


MAX_SUSPECTS = 10
"""How many suspects one answer names."""


class SuspectScope(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that a worker may execute: as in a claim."""

    environment: str
    tasks: tuple[str, ...]
    versions: Mapping[str, int] = {}
    queues: tuple[str, ...] | None = None


class Questions(Protocol):
    """Each is answered by index, at a cost that does not grow with what waits."""

    async def ended(self, run_ids: Sequence[str]) -> dict[str, Run]:
        """The runs among these that have ended."""
        ...

    async def vitals(self) -> Vitals:
        """How the database itself is."""
        ...

    async def neglect(self, environment: str, *, limit: int) -> Neglect:
        """What nobody has looked after."""
        ...

    async def parking(self, environment: str, *, limit: int) -> list[Gate]:
        """Gates that runs are parked behind, up to so many."""
        ...

    async def holders(self, environment: str, gate: Gate, *, limit: int) -> list[str]:
        """Runs that occupy a gate, by id, up to so many."""
        ...

    async def parked(self, environment: str, gate: Gate, *, limit: int) -> int:
        """How many runs are parked behind a gate, counted only so far."""
        ...

    async def suspects(self, scope: SuspectScope) -> list[str]:
        """Return due runs that are executed alone, by id: those that wait longest."""
        ...

    async def successors(self, environment: str, run_ids: Sequence[str]) -> dict[str, str]:
        """By run, its first retry or rerun, for those that have one."""
        ...

    async def ahead(self, run: Run, *, is_fair: bool, limit: int) -> int:
        """How many due runs of its queue come before a run that is due and not parked, counted
        only so far. In a fair queue rank does not tell: there, how many others are due at all."""
        ...
