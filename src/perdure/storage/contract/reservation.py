"""What a push transport asks for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from perdure.core.json_text import check_label
from perdure.core.run.run import DEFAULT_ENVIRONMENT
from perdure.errors import InvalidInput


class ReserveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Up to `places` due runs of a queue, reserved for `ttl`, for a push transport to hand out."""

    queue: str
    tasks: tuple[str, ...]
    versions: Mapping[str, int] = {}
    places: int
    ttl: timedelta = timedelta(seconds=30)
    environment: str = DEFAULT_ENVIRONMENT
    commit_id: str

    def __post_init__(self) -> None:
        check_label(self.queue, "queue")
        if self.ttl <= timedelta(0):
            raise InvalidInput("ttl", f"must be more than nothing, not {self.ttl}")
        if self.places < 0:
            raise InvalidInput("places", f"must be 0 or more, not {self.places}")

    @property
    def queues(self) -> tuple[str, ...]:
        return (self.queue,)

    @property
    def run_ids(self) -> None:
        return None
