"""Which runs storage scans look for: by status alone, and from when.

A group of statuses narrows a scan. Whether a run of the group is due follows from its times and its
lease: the functions return from when, or None if that cannot come by itself.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from perdure.core.run.lifecycle import (
    CANCELLATION_FINALISATION,
    DELIVERY_RECOVERY,
    RUNNABLE,
    Status,
)
from perdure.core.run.run import Run


class Reservation(StrEnum):
    """The state of a dispatch reservation."""

    ACTIVE = "active"
    EXPIRED = "expired"


def is_runnable(status: Status) -> bool:
    return status in RUNNABLE


def needs_delivery_recovery(status: Status) -> bool:
    return status in DELIVERY_RECOVERY


def needs_cancellation_finalisation(status: Status) -> bool:
    return status in CANCELLATION_FINALISATION


def runnable_at(run: Run) -> datetime | None:
    """Return from when a worker may claim the run."""
    return run.claimable_at


def delivery_recovery_at(run: Run) -> datetime | None:
    """Return from when maintenance may recover the run."""
    return _lease_end(run, DELIVERY_RECOVERY)


def cancellation_finalisation_at(run: Run) -> datetime | None:
    """Return from when maintenance may cancel the run in place of its owner."""
    return _lease_end(run, CANCELLATION_FINALISATION)


def dispatch_reservation(run: Run, now: datetime) -> Reservation | None:
    """Return whether the run holds a dispatch reservation at `now`, or held one that has expired.
    None: it holds none."""
    expires_at = run.dispatch_expires_at
    if expires_at is None:
        return None
    return Reservation.EXPIRED if expires_at <= now else Reservation.ACTIVE


def _lease_end(run: Run, statuses: frozenset[Status]) -> datetime | None:
    if run.lease is None or run.status not in statuses:
        return None
    return run.lease.expires_at
