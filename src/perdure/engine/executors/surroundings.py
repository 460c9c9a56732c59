"""What an executor needs of the app it works for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.engine.executors.addresses import Network
from perdure.engine.executors.secret import Allow, anything
from perdure.storage.protocol import Clock


@dataclass(frozen=True, slots=True)
class Surroundings:
    clock: Clock
    result_limit: int
    allowed: Sequence[Network] = ()
    allow_secret: Allow = anything
