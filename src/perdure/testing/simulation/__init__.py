"""The deterministic simulator: the real runtime on a seeded, virtual-time event loop.

Apps, workers, maintenance, clients and operators run as they are, on one loop whose time jumps
and whose schedule chance decides, over the real SQLite adapter; around them everything goes
wrong that may. One number, the seed, decides all of it.

    python -m perdure.testing.simulation --seeds 1..1000
    python -m perdure.testing.simulation --seed 17
"""

from perdure.testing.simulation.campaign import Campaign, command, replay, run_seeds
from perdure.testing.simulation.loop import SimulationLoop, VirtualClock
from perdure.testing.simulation.notes import POINTS, Notes
from perdure.testing.simulation.scenario import Scenario, make_scenario

__all__ = [
    "POINTS",
    "Campaign",
    "Notes",
    "Scenario",
    "SimulationLoop",
    "VirtualClock",
    "command",
    "make_scenario",
    "replay",
    "run_seeds",
]
