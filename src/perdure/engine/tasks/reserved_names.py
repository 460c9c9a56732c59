"""Names of the engine's own tasks: no other task may be called so, or have been."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.errors import InvalidInput

RESERVED = "perdure."
"""How names of the engine's own tasks begin."""


def refuse_reserved(task: str, field: str = "task") -> None:
    """Raise InvalidInput. A key that may only trigger must not give orders that way, nor under
    another name than its own."""
    if task.startswith(RESERVED):
        problem = f"{task!r:.80} is the engine's own; its orders have routes of their own"
        raise InvalidInput(field, f"{problem}, and its names begin with {RESERVED!r}")


def refuse_reserved_names(name: str, aliases: Iterable[str]) -> None:
    """Raise InvalidInput if a task has a name or an alias of the engine's own."""
    refuse_reserved(name, "name")
    for alias in aliases:
        refuse_reserved(alias, "aliases")
