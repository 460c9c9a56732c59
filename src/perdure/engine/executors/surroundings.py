"""What an executor needs of the app it works for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.engine.executors.addresses import Network
from perdure.engine.executors.secret import Allow, anything
from perdure.engine.redaction import Redact
from perdure.storage.protocol import Clock


def unredacted(message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return message, fields


@dataclass(frozen=True, slots=True)
class Surroundings:
    clock: Clock
    result_limit: int
    allowed: Sequence[Network] = ()
    allow_secret: Allow = anything
    redact: Redact = unredacted

    def presentable(self, output: dict[str, Any]) -> dict[str, Any]:
        """What may be kept of what came back, beside the result."""
        try:
            return self.redact("", output)[1]
        except Exception as error:  # noqa: BLE001  # somebody's filter; what it hides stays hidden
            return {"left_out": f"{type(error).__name__} in redact"}
