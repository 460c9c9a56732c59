"""How far long work is: a bar on standard error, if somebody sits there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Reached = Callable[[int], None]
"""Called with how much is done by now."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Reached]:
    """Without a terminal nothing is shown."""
    if not (sys.stderr.isatty() and total):
        yield lambda done: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield lambda done: bar.update(min(done, total) - bar.pos)
