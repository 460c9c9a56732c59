"""The conditions on the arrows of `lifecycle`, each a small predicate over run and event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Guard
from perdure.core.run.run import Run

Predicate = Callable[[Run, Any], bool]


def _always(run: Run, event: Any) -> bool:
    return True


def _due(run: Run, event: Any) -> bool:
    return run.run_at is not None and run.run_at <= event.occurred_at


def _queued_due(run: Run, event: Any) -> bool:
    return bool((run.run_at or run.updated_at) <= event.occurred_at)


def _lease_expired(run: Run, event: Any) -> bool:
    return run.lease is not None and run.lease.expires_at <= event.occurred_at


def _delivery_fits(run: Run, event: Any) -> bool:
    target = (event.delivery.environment, event.delivery.run_id, event.delivery.queue)
    return target == (run.environment, run.id, run.queue)


def _delivery_fits_when_due(run: Run, event: Any) -> bool:
    return _delivery_fits(run, event) and _due(run, event)


def _delivery_fits_lease_expired(run: Run, event: Any) -> bool:
    return _delivery_fits(run, event) and _lease_expired(run, event)


def _holder(run: Run, event: Any) -> bool:
    lease = run.lease
    return lease is not None and (lease.token, lease.worker_id) == (event.token, event.worker_id)


def _next_attempt(run: Run, event: Any) -> bool:
    is_next = event.attempt == run.counters.attempts + 1
    return is_next and run.lease is not None and run.lease.expires_at > event.occurred_at


def _completes(run: Run, event: Any) -> bool:
    has_attempt = run.lease is not None and run.lease.attempt is not None
    return has_attempt and run.lease.attempt == event.attempt  # type: ignore[union-attr]  # checked


def _never_began(run: Run, event: Any) -> bool:
    refused = event.failure.kind in (FailureKind.SYSTEM, FailureKind.REJECTED)
    return refused and event.attempt is None


def _no_attempt(run: Run, event: Any) -> bool:
    return run.counters.attempts == 0


def _ttl_passed(run: Run, event: Any) -> bool:
    passed = run.expires_at is not None and run.expires_at <= event.occurred_at
    return passed and _no_attempt(run, event)


PREDICATES: dict[Guard, Predicate] = {
    Guard.ALWAYS: _always,
    Guard.DELIVERY_FITS: _delivery_fits,
    Guard.DELIVERY_FITS_WHEN_DUE: _delivery_fits_when_due,
    Guard.DELIVERY_FITS_LEASE_EXPIRED: _delivery_fits_lease_expired,
    Guard.QUEUED_DUE: _queued_due,
    Guard.DUE: _due,
    Guard.LEASE_EXPIRED: _lease_expired,
    Guard.HOLDER: _holder,
    Guard.NEXT_ATTEMPT: _next_attempt,
    Guard.COMPLETES: _completes,
    Guard.NEVER_BEGAN: _never_began,
    Guard.TTL_PASSED: _ttl_passed,
    Guard.NO_ATTEMPT: _no_attempt,
}
"""Whether a guard lets an event happen to a run."""
