"""The page about `Retry` and `Defaults`: every field, its default and what it does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.core.text import in_words
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.tasks.options import Retry

INTRODUCTION = """\
# Settings

Made by `make docs` from `scripts/settings_page.py`; do not edit it here.

## Retry

`@app.task(retry=Retry(max_attempts=5, initial=2))`, and the same in `task.options(retry=…)` and
for a schedule. A field that is not given takes its value from the task, then from `Defaults`.
Durations are seconds or a `timedelta`.

"""
DEFAULTS_INTRODUCTION = """
## Defaults

`App(url, defaults=Defaults(lease_ttl=20))` sets them in code. Without it, each comes from its
environment variable (`PERDURE_LEASE_TTL=20`), then from `[tool.perdure]` in `pyproject.toml`.
`perdure config` prints every value and where it comes from.

"""

RETRY = {
    "max_attempts": "How many attempts a run has in all. 0 and 1 both mean one attempt, no retry. "
    "Releases, returns and recovered shutdowns do not count. Default: `Defaults.max_attempts`.",
    "initial": "The delay before the first retry. Default: `Defaults.backoff_initial`.",
    "maximum": "The longest delay. Default: `Defaults.backoff_maximum`.",
    "factor": "By what each delay is multiplied for the next one, if `kind` is `exponential`. "
    "Default: `Defaults.backoff_factor`.",
    "jitter": "By what share each delay is varied at random, from 0 to 1: 0.2 means ± 20 %. "
    "Default: `Defaults.backoff_jitter`.",
    "kind": "`exponential` (the default), `linear` (`initial` is added each time) or `fixed`.",
    "delays": "The delays themselves, one for each retry; the last one is repeated. Replaces "
    "`initial`, `maximum`, `factor` and `kind`.",
    "on_exhausted": "What follows the last failure: `dead_letter`, which waits for an operator, "
    "or `fail`. Default: `dead_letter` if there is more than one attempt.",
    "poison_threshold": "How many equal failures in a row make a dead letter before the attempts "
    "are used up. Not set: never.",
}
DEFAULTS = {
    "url": "The database, or the server of a worker without one.",
    "environment": "The environment that runs, keys and schedules belong to.",
    "queue": "The queue of tasks that name none.",
    "concurrency": "How many runs a worker executes at once.",
    "max_attempts": "See `Retry.max_attempts`.",
    "backoff_initial": "See `Retry.initial`.",
    "backoff_maximum": "See `Retry.maximum`.",
    "backoff_factor": "See `Retry.factor`.",
    "backoff_jitter": "See `Retry.jitter`.",
    "lease_ttl": "How long a claim is valid without a renewal. A dead worker's runs are recovered "
    "after at most this time.",
    "renewals_per_ttl": "How often a lease is renewed within `lease_ttl`.",
    "poll": "How often a worker looks for due runs if no hint arrives.",
    "cancel_grace": "How long an attempt that was asked to stop (see `ctx.cancelled`) may go on "
    "before it is interrupted.",
    "abandon_after": "How long after that request an attempt that still runs is abandoned: its "
    "outcome is recorded without it, and its slot stays taken until the handler really ends.",
    "drain_deadline": "How long a worker that stops lets its attempts run before they are handed "
    "over to other workers.",
    "maintenance_tick": "How often maintenance looks for expired leases, deadlines and old runs.",
    "maintenance_batch": "How many rows maintenance changes in one transaction.",
    "misfire": "What a schedule does about a missed time: see [Schedules](schedules.md).",
    "misfire_grace": "How late a scheduled time may be decided without being a missed one.",
    "catch_up_limit": "How many missed times a schedule makes up for at most.",
    "overlap": "What a schedule does if its earlier runs are still active.",
    "max_concurrency": "How many runs of one schedule may be active at once.",
    "target_timeout": "The timeout of http and shell tasks that set none.",
    "target_secrets": "Names of environment variables that http and shell tasks from manifests may "
    "use as secrets, with `*`, separated by commas.",
    "http_allow": "Private networks that http tasks and webhooks may reach: `loopback`, "
    "`10.0.0.0/8`, separated by commas.",
    "webhook_timeout": "How long an endpoint may take to answer a webhook.",
    "webhook_failures": "How many failures in a row disable a webhook, once `webhook_patience` has "
    "passed, too.",
    "webhook_patience": "How long a webhook must have failed before it is disabled.",
    "webhook_secrets": "Names of environment variables that webhooks may sign with.",
    "payload_limit": "The largest payload, in bytes of JSON.",
    "result_limit": "The largest result, in bytes of JSON.",
    "idempotency_ttl": "How long the key of a run that succeeded or was cancelled stays taken.",
    "retention": "How long a run is kept that ended without a failure.",
    "failure_retention": "How long a run is kept that failed. A run that became a dead letter is "
    "kept this long after its dead letter was closed.",
    "open_dead_letter_retention": "How long a run is kept whose dead letter is still open. "
    "Not set: it is never deleted.",
}


def settings() -> str:
    lines = [INTRODUCTION, "| field | what it is |\n|---|---|\n"]
    lines += [f"| `{name}` | {RETRY[name]} |\n" for name in Retry.__struct_fields__]
    lines += [DEFAULTS_INTRODUCTION, "| field | default | what it is |\n|---|---|---|\n"]
    values = zip(Defaults.__struct_fields__, Defaults.__struct_defaults__, strict=True)
    lines += [f"| `{name}` | {_format(value)} | {DEFAULTS[name]} |\n" for name, value in values]
    return "".join(lines)


def _format(value: Any) -> str:
    if isinstance(value, timedelta):
        return in_words(value)
    return "none" if value in ("", None) else f"`{value}`"
