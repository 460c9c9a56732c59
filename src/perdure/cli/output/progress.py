"""How far long work is: a bar on standard error, if somebody sits there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Reached = Callable[[int], None]
"""Called with how much is done by now."""


def is_watched() -> bool:
    """Whether somebody sits there."""
    return sys.stderr.isatty()


@contextmanager
def progress(label: str, total: int) -> Iterator[Reached]:
    """Without a terminal nothing is shown."""
    if not (is_watched() and total):
        yield lambda done: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield lambda done: bar.update(min(done, total) - bar.pos)
