"""A story of one app on virtual time: hours pass in milliseconds, and nothing is left to chance."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random  # seeded
from typing import Any

from perdure import App
from perdure.engine.runtime.defaults import Defaults
from simulation.loop import SimulationLoop, VirtualClock

Story = Callable[[App], Coroutine[Any, Any, None]]


def play(story: Story, **defaults: Any) -> None:
    """Tell it to the end, on a database in memory. Its workers need `same_loop=True`."""
    loop = SimulationLoop(Random("a story"), haste=0.0)
    app = App(
        "sqlite:///:memory:",
        clock=VirtualClock(loop, Random("the clock")),
        defaults=Defaults(**defaults),
        inline=True,
    )
    try:
        loop.run_until_complete(story(app))
    finally:
        loop.end()
    assert loop.errors == []
