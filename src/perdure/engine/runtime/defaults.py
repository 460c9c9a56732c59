"""Every default, in one table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import force_setattr, replace

from perdure.core.json_text import check_label
from perdure.engine.runtime.input import (
    choice,
    count,
    duration,
    lease_length,
    number,
    some_time,
    text,
)
from perdure.engine.runtime.keywords import ExplainedStruct


class Defaults(ExplainedStruct, frozen=True, kw_only=True):
    """What holds where nobody says otherwise. Durations may be given in seconds, too."""

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
    misfire: str = "run_once"
    misfire_grace: timedelta = timedelta(seconds=60)
    catch_up_limit: int = 100
    overlap: str = "forbid"
    max_concurrency: int = 1
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
    open_dead_letter_retention: timedelta | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None or name not in OPTIONAL_DURATIONS:
                force_setattr(self, name, _checked(name, value, kind_of(name)))
        if self.http_allow:
            from perdure.net.address_guard import allowed_networks

            allowed_networks(self.http_allow)
        if any(getattr(self, name) != usual for name, usual in _OF_SCHEDULES.items()):
            _check_schedules(self.of_schedules)

    @property
    def of_schedules(self) -> dict[str, Any]:
        """What holds for a schedule that does not say otherwise."""
        return {name: getattr(self, name) for name in _OF_SCHEDULES}

    @property
    def renewal_interval(self) -> timedelta:
        return self.lease_ttl / self.renewals_per_ttl


_OF_SCHEDULES = {
    name: usual
    for name, usual in zip(Defaults.__struct_fields__, Defaults.__struct_defaults__, strict=True)
    if name in ("misfire", "misfire_grace", "catch_up_limit", "overlap", "max_concurrency")
}
OPTIONAL_DURATIONS = frozenset({"open_dead_letter_retention"})
"""Settings that are None by default and a duration otherwise."""
LONGER_THAN_NOTHING = frozenset({"poll", "maintenance_tick", "idempotency_ttl"})
BOUNDS = {"backoff_factor": (1.0, 1000.0), "backoff_jitter": (0.0, 1.0)}


def kind_of(name: str) -> type[Any]:
    """Return the type of a setting's values."""
    if name in OPTIONAL_DURATIONS:
        return timedelta
    usual: object = Defaults.__struct_defaults__[Defaults.__struct_fields__.index(name)]
    return type(usual)


def _checked(name: str, value: Any, kind: type) -> Any:
    """The value as this kind of setting has it. Raises InvalidInput."""
    if name == "lease_ttl":
        return lease_length(value, name)
    if kind is timedelta:
        return (some_time if name in LONGER_THAN_NOTHING else duration)(value, name)
    if kind is int:
        return count(value, name, least=0 if name == "max_attempts" else 1)
    if kind is float:
        return number(value, name, *BOUNDS[name])
    return check_label(value, name) if name in ("environment", "queue") else text(value, name)


def _check_schedules(usual: dict[str, Any]) -> None:
    """Raise InvalidInput if no schedule could be so."""
    from perdure.core.schedule import Definition, Misfire, Overlap, check_definition, cron

    plain = Definition(id="schedule", task="task", cadence=cron("@daily"))
    words = {
        "misfire": choice(usual["misfire"], Misfire, "misfire"),
        "overlap": choice(usual["overlap"], Overlap, "overlap"),
    }
    check_definition(replace(plain, **{**usual, **words}))


DEFAULTS = Defaults()
