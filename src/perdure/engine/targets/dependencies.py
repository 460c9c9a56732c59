"""What an executor needs of the app it works for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.engine.runtime.secret import Allow, Secrets, anything
from perdure.net.address_guard import Network
from perdure.storage.contract.runs import Clock
from perdure.telemetry.redactor import Redaction, Redactor

DEFAULT_REDACTOR = Redactor(Redaction())


@dataclass(frozen=True, slots=True)
class Surroundings:
    clock: Clock
    result_limit: int
    allowed: Sequence[Network] = ()
    allow_secret: Allow = anything
    app_redactor: Redactor = DEFAULT_REDACTOR

    def redactor(self, secrets: Secrets) -> Redactor:
        """Removes the secrets of one attempt, and what looks like a secret."""
        return secrets.redactor(self.app_redactor)
