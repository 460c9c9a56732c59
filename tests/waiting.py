"""How long tests wait for a signal."""

from __future__ import annotations

MAX_WAIT_S = 300
"""Only a hang takes so long: a test waits for its signal however busy the machine is."""
