"""Every default, in one table."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from perdure.core.retry import LONGEST
from perdure.errors import InvalidInput


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds where nobody says otherwise."""

    url: str = "sqlite:///perdure.db"
    environment: str = "default"
    queue: str = "default"
    concurrency: int = 100
    max_attempts: int = 3
    backoff_initial: timedelta = timedelta(seconds=1)
    backoff_maximum: timedelta = timedelta(hours=1)
    backoff_factor: float = 2.0
    backoff_jitter: float = 0.2
    lease_ttl: timedelta = timedelta(seconds=30)
    renewals_per_ttl: int = 3
    poll: timedelta = timedelta(seconds=1)
    cancel_grace: timedelta = timedelta(seconds=10)
    abandon_after: timedelta = timedelta(seconds=60)
    drain_deadline: timedelta = timedelta(seconds=30)
    maintenance_tick: timedelta = timedelta(seconds=1)
    maintenance_batch: int = 500
    target_timeout: timedelta = timedelta(seconds=300)
    target_secrets: str = ""
    http_allow: str = ""
    webhook_timeout: timedelta = timedelta(seconds=15)
    webhook_failures: int = 20
    webhook_patience: timedelta = timedelta(days=1)
    webhook_secrets: str = "WEBHOOK_*"
    payload_limit: int = 1024 * 1024
    result_limit: int = 1024 * 1024
    idempotency_ttl: timedelta = timedelta(days=30)
    retention: timedelta = timedelta(days=30)
    failure_retention: timedelta = timedelta(days=90)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, timedelta) and not timedelta(0) <= value <= LONGEST:
                longest = int(LONGEST.total_seconds())
                seconds = f"{value.total_seconds():g}"
                raise InvalidInput(name, f"must be 0 to {longest} seconds, not {seconds}")
        if self.http_allow:
            from perdure.engine.executors.addresses import allowed_networks

            allowed_networks(self.http_allow)

    @property
    def renewal_interval(self) -> timedelta:
        return self.lease_ttl / self.renewals_per_ttl


DEFAULTS = Defaults()
