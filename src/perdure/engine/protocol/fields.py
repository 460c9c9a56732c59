"""The parts that messages are made of, and their limits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.json_text import MAX_LABEL
from perdure.core.run.backoff import LONGEST

MAX_CLAIM = 500
MAX_REPORTS = 500
MAX_LEASES = 1000
"""Leases in one renewal, and tokens in one `return_claims`."""
MAX_TRIGGERS = 500
MAX_RESULTS = 1000
MAX_TASKS = 5000
MAX_QUEUES = 1000
MAX_SCHEDULES = 5000
MAX_LOG_BATCHES = 500
MAX_LOG_LINES = 1000
MAX_HINT_WAIT_S = 25.0
MAX_REQUEST_AGE = timedelta(days=1)
"""A trigger's request id may be this far away from the server's clock."""

_MAX_SECONDS = LONGEST.total_seconds()
_MAX_INT = 2**31 - 1

Instant = Annotated[datetime, Meta(tz=True)]
Seconds = Annotated[float, Meta(ge=0, le=_MAX_SECONDS, description="Seconds.")]
LeaseSeconds = Annotated[
    float, Meta(gt=0, le=MAX_LEASE_TTL.total_seconds(), description="Seconds.")
]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)]
RunId = Annotated[str, Meta(pattern="^run_[0-9a-f]{32}$")]
WorkerId = Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,100}$")]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="A lease's token.")]
Count = Annotated[int, Meta(ge=0, le=_MAX_INT)]
Number = Annotated[int, Meta(ge=1, le=_MAX_INT)]
Json = Annotated[msgspec.Raw, Meta(description="Any JSON value.")]
JsonObject = Annotated[
    msgspec.Raw, Meta(description="A JSON object.", extra_json_schema={"type": "object"})
]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every request and every part of one shares."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every answer shares. A newer server may add fields."""
