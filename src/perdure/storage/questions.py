"""What those ask who only want to know. Nothing is decided by the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from perdure.core.limits import Gate
from perdure.core.run import Run

if TYPE_CHECKING:
    from perdure.core.doctor import Neglect, Vitals


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

    async def successors(self, environment: str, run_ids: Sequence[str]) -> dict[str, str]:
        """By run, its first retry or rerun, for those that have one."""
        ...

    async def ahead(self, run: Run, *, is_fair: bool, limit: int) -> int:
        """How many due runs of its queue come before a run that is due and not parked, counted
        only so far. In a fair queue rank does not tell: there, how many others are due at all."""
        ...
