"""Whose request it is, and what that caller may do."""

from __future__ import annotations

from datetime import datetime

import msgspec

from perdure.core.run.run import Actor
from perdure.engine.operators.keys import Secret
from perdure.engine.protocol.scope import Scope


class Caller(msgspec.Struct, frozen=True):
    """Who calls: a key, or whoever sits at this machine while there are no keys."""

    id: str
    name: str
    environment: str
    scopes: frozenset[Scope]
    actor: Actor
    expires_at: datetime | None = None
    secret: Secret | None = None
    """The secret that was shown, as it was then. None: no key was shown."""
