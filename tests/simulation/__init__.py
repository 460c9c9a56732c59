"""The deterministic simulator: the real runtime on a seeded, virtual-time event loop.

Apps, workers, maintenance, clients and operators run as they are, on one loop whose time jumps
and whose schedule chance decides, over the real SQLite adapter; around them everything goes
wrong that may. One number, the seed, decides all of it.

    PYTHONPATH=tests python -m simulation --seeds 1..1000
    PYTHONPATH=tests python -m simulation --seed 17
"""

from simulation.campaign import Campaign, command, replay, run_seeds
from simulation.loop import SimulationLoop, VirtualClock
from simulation.notes import POINTS, Notes
from simulation.scenario import Scenario, make_scenario

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
