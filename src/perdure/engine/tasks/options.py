"""What a task says about itself, and what one call of it may say differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
from msgspec.structs import force_setattr, replace

from perdure.core.decide.create import MAX_META, MAX_TAGS, check_priority
from perdure.core.json_text import check_label, encode_value, in_utc
from perdure.core.limits.rates import Rate
from perdure.core.run.backoff import Backoff, BackoffKind, check_backoff
from perdure.core.run.run import OnExhausted, OnLeaseExpired, Policy, is_run_id
from perdure.core.text import in_words
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import (
    Duration,
    choice,
    count,
    duration,
    flag,
    lease_length,
    number,
    some_time,
    text,
)
from perdure.engine.runtime.keywords import ExplainedStruct
from perdure.engine.tasks.concurrency_key import KeyFunction
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.engine.tasks.target import Target


RETRY_FIELDS = ("max_attempts", "backoff", "on_exhausted", "poison_threshold")
"""The fields of a policy that a `Retry` sets."""


class Retry(ExplainedStruct, frozen=True):
    """How often and when to try again. Durations are seconds or timedeltas; what is not given
    holds as configured, see `perdure config`.

    `max_attempts` counts every try: 0 and 1 both mean one, and no retry. Delays grow from
    `initial` by `factor` up to `maximum` (`kind`: exponential, linear, fixed), each spread by
    ± `jitter`; or they are listed in `delays`, the last one repeated. `on_exhausted`: dead_letter
    or fail. `poison_threshold`: so many equal failures in a row make a dead letter at once.
    """

    max_attempts: int | None = None
    initial: Duration | None = None
    maximum: Duration | None = None
    factor: float | None = None
    jitter: float | None = None
    kind: BackoffKind | str | None = None
    delays: Sequence[Duration] = ()
    on_exhausted: OnExhausted | str | None = None
    poison_threshold: int | None = None

    def __post_init__(self) -> None:
        if self.kind is not None:
            force_setattr(self, "kind", choice(self.kind, BackoffKind, "retry.kind"))
        if self.on_exhausted is not None:
            ending = choice(self.on_exhausted, OnExhausted, "retry.on_exhausted")
            force_setattr(self, "on_exhausted", ending)
        if not isinstance(self.delays, list | tuple):
            problem = f"must be a list of seconds, not {self.delays!r:.80}"
            raise InvalidInput("retry.delays", problem)
        changed = self._applied_to(Policy())
        if self.maximum is not None:
            self._check_initial(changed.backoff)

    def applied_to(self, policy: Policy) -> Policy:
        """`policy`, with what is given here. Raises InvalidInput."""
        changed = self._applied_to(policy)
        self._check_initial(changed.backoff)
        return changed

    def _check_initial(self, backoff: Backoff) -> None:
        """A first delay that is never waited for is a mistake; a shorter maximum is an order."""
        if self.initial is None or backoff.kind is BackoffKind.LIST:
            return
        if backoff.initial > backoff.maximum:
            longer = f"{in_words(backoff.initial)} is longer than maximum"
            advice = "give a longer maximum as well"
            problem = f"{longer}, {in_words(backoff.maximum)}, so it would never be; {advice}"
            raise InvalidInput("retry.initial", problem)

    def _applied_to(self, policy: Policy) -> Policy:
        changes: dict[str, Any] = {"backoff": self._backoff(policy.backoff)}
        if self.max_attempts is not None:
            changes["max_attempts"] = count(self.max_attempts, "retry.max_attempts", least=0)
        if self.on_exhausted is not None:
            changes["on_exhausted"] = self.on_exhausted
        if self.poison_threshold is not None:
            changes["poison_threshold"] = count(self.poison_threshold, "retry.poison_threshold")
        return replace(policy, **changes)

    def _backoff(self, backoff: Backoff) -> Backoff:
        changes: dict[str, Any] = {}
        for name in ("initial", "maximum"):
            if getattr(self, name) is not None:
                changes[name] = duration(getattr(self, name), f"retry.{name}")
        if self.factor is not None:
            changes["factor"] = number(self.factor, "retry.factor", 1, 1000)
        if self.jitter is not None:
            changes["spread"] = number(self.jitter, "retry.jitter", 0, 1)
        if self.kind is not None:
            changes["kind"] = self.kind
        if self.delays:
            delays = tuple(duration(delay, "retry.delays") for delay in self.delays)
            changes |= {"kind": BackoffKind.LIST, "delays": delays}
        changed = replace(backoff, **changes)
        check_backoff(changed)
        return changed


def check_retry(retry: Retry, field: str = "retry") -> Retry:
    if not isinstance(retry, Retry):
        hint = f"Retry(max_attempts={retry})" if type(retry) is int else "Retry(max_attempts=5)"
        raise InvalidInput(field, f"must be a Retry, e.g. {hint}, not {retry!r:.80}")
    return retry


class Executor(StrEnum):
    """Where a handler runs: on the loop, in a thread, or in a process that can be killed. Or what
    stands in for one: a request to a URL, or a command."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"
    HTTP = "http"
    SHELL = "shell"


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One task's definition, without its code. `concurrency_key` is a path in the payload;
    `has_key_function`: the code derives the key instead."""

    name: str
    queue: str
    executor: Executor
    policy: Policy
    priority: int = 0
    ttl: timedelta | None = None
    version: int | None = None
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    concurrency_key: str | None = None
    has_key_function: bool = False
    target: Target | None = None
    aliases: tuple[str, ...] = ()


class _CommonKeywords(TypedDict, total=False):
    queue: str
    retry: Retry
    timeout: Duration | None
    priority: int
    ttl: Duration | None
    lease_ttl: Duration | None
    on_lease_expired: OnLeaseExpired | str
    version: int | None
    concurrency: int | None
    concurrency_per_key: int | None
    rate: str | Rate | None
    rate_per_key: str | Rate | None
    record_heartbeats: bool


class TargetKeywords(_CommonKeywords, total=False):
    """What `app.http_task` and `app.shell_task` take besides the target; as `TaskKeywords`."""

    concurrency_key: str | None


class TaskKeywords(_CommonKeywords, total=False):
    """What `@app.task(…)` takes; see `task_settings`, and the guide."""

    name: str
    aliases: Sequence[str]
    executor: Executor | str
    concurrency_key: str | KeyFunction | None


def make_policy(
    defaults: Defaults,
    retry: Retry | None,
    *,
    timeout: Duration | None,
    lease_ttl: Duration | None,
    on_lease_expired: OnLeaseExpired | str,
    record_heartbeats: bool = False,
) -> Policy:
    """The rules for a task's runs: what is configured, and what the task says differently."""
    backoff = Backoff(
        initial=defaults.backoff_initial,
        maximum=defaults.backoff_maximum,
        factor=defaults.backoff_factor,
        spread=defaults.backoff_jitter,
    )
    policy = Policy(
        max_attempts=defaults.max_attempts,
        backoff=backoff,
        timeout=None if timeout is None else some_time(timeout, "timeout"),
        lease_ttl=None if lease_ttl is None else lease_length(lease_ttl, "lease_ttl"),
        on_lease_expired=choice(on_lease_expired, OnLeaseExpired, "on_lease_expired"),
        record_heartbeats=flag(record_heartbeats, "record_heartbeats"),
        idempotency_ttl=defaults.idempotency_ttl,
    )
    return policy if retry is None else check_retry(retry).applied_to(policy)


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one trigger says differently from its task. None: as the task says."""

    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: Duration | None = None
    ttl: Duration | None = None
    idempotency_key: str | None = None
    idempotency_ttl: Duration | None = None
    singleton_key: str | None = None
    concurrency_key: str | None = None
    tags: dict[str, str] | None = None
    meta: dict[str, Any] | None = None
    debug: bool = False
    retry: Retry | None = None
    timeout: Duration | None = None
    parent_id: str | None = None
    root_id: str | None = None
    continuation_of: str | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None:
                check(value, name)
        if self.run_at is not None and self.delay is not None:
            raise InvalidInput("delay", "give run_at or delay, not both")

    def changed(self, options: dict[str, Any]) -> TriggerOptions:
        """These options and some more; the later word counts, also of run_at and delay."""
        for name, other in (("run_at", "delay"), ("delay", "run_at")):
            if options.get(name) is not None:
                options = {other: None, **options}
        return TriggerOptions(**{**msgspec.structs.asdict(self), **options})


class TriggerKeywords(TypedDict, total=False):
    """What `task.options(…)` takes; see `TriggerOptions`, and the guide."""

    queue: str | None
    priority: int | None
    run_at: datetime | None
    delay: Duration | None
    ttl: Duration | None
    idempotency_key: str | None
    idempotency_ttl: Duration | None
    singleton_key: str | None
    concurrency_key: str | None
    tags: dict[str, str] | None
    meta: dict[str, Any] | None
    debug: bool
    retry: Retry | None
    timeout: Duration | None
    parent_id: str | None
    root_id: str | None
    continuation_of: str | None


def _check_tags(tags: dict[str, str], field: str) -> None:
    if not isinstance(tags, dict):
        raise InvalidInput(field, f"must be a dict, e.g. {{'team': 'red'}}, not {tags!r:.80}")
    if len(tags) > MAX_TAGS:
        raise InvalidInput(field, f"at most {MAX_TAGS} are allowed, not {len(tags)}")
    for key, value in tags.items():
        check_label(key, field)
        check_label(value, f"{field}.{key}")


def _check_meta(meta: dict[str, Any], field: str) -> None:
    if not isinstance(meta, dict):
        raise InvalidInput(field, f"must be a dict, not {meta!r:.80}")
    encode_value(meta, field=field, limit=MAX_META)


def _check_run_id(run_id: str, field: str) -> None:
    if not is_run_id(text(run_id, field)):
        raise InvalidInput(field, f"{run_id!r:.80} is not the id of a run")


_CHECKS: dict[str, Callable[[Any, str], object]] = {
    "queue": check_label,
    "priority": lambda priority, _: check_priority(priority),
    "run_at": in_utc,
    "delay": duration,
    "ttl": some_time,
    "idempotency_key": check_label,
    "idempotency_ttl": some_time,
    "singleton_key": check_label,
    "concurrency_key": check_label,
    "tags": _check_tags,
    "meta": _check_meta,
    "debug": flag,
    "retry": check_retry,
    "timeout": some_time,
    "parent_id": _check_run_id,
    "root_id": _check_run_id,
    "continuation_of": _check_run_id,
}
