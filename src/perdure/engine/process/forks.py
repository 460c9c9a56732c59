"""After a fork: threads are gone, and connections belong to the parent. Whoever had some begins
anew in the child, and what it had is neither used nor closed there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgetful(Protocol):
    def forget_the_parent(self) -> None: ...


_known: weakref.WeakSet[Forgetful] = weakref.WeakSet()
_left_alone: list[object] = []


def forgets_its_parent(one: Forgetful) -> None:
    """Have it told, in every child that is forked while it lives."""
    _known.add(one)


def leave_alone(*things: object) -> None:
    """Keep them for ever: to collect them would be to close them."""
    _left_alone.extend(things)


def _in_child() -> None:
    for one in list(_known):
        one.forget_the_parent()


os.register_at_fork(after_in_child=_in_child)
