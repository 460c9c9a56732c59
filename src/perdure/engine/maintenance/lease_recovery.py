"""When recovery may take an expired lease: a database outage costs nobody's.

Whoever holds the lease may only have been unable to renew it. So a node judges a lease once the
storage has taken its writes without a gap for `grace`, within which every owner comes back; a node
that has just started has seen nothing yet. Reads do not count: a read-only standby answers them,
and so does a full disk, and neither lets an owner renew. What counts as a gap depends on the lease:
one that is missed by a renewal must still outlive the longest wait that does not count.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from perdure.core.run.run import Run
from perdure.engine.runtime.defaults import Defaults
from perdure.storage.contract.runs import Clock


class Gap(msgspec.Struct, frozen=True):
    """A time without a successful write: how long it was, and when it ended."""

    length: float
    ended: float


class Patience:
    """One node's, who looks every `tick`. Its own time decides, by a clock that never steps."""

    def __init__(
        self, clock: Clock, defaults: Defaults, *, tick: timedelta, grace: timedelta
    ) -> None:
        self._clock = clock
        self._defaults = defaults
        self._grace = grace
        self._noticeable = 1.5 * tick
        self._wrote_at: float | None = None
        self._gaps: list[Gap] = []

    def record_write(self) -> None:
        """The storage has just written something. If it kept us waiting it was away, although
        retries may have hidden that."""
        now = self._clock.elapsed()
        before, self._wrote_at = self._wrote_at, now
        gap = Gap(float("inf") if before is None else now - before, now)
        # What a shorter gap forbids, a longer one after it forbids for longer.
        while self._gaps and self._gaps[-1].length <= gap.length:
            self._gaps.pop()
        if gap.length > self._noticeable.total_seconds():
            self._gaps.append(gap)

    def record_failure(self) -> None:
        """The storage has not answered, or has refused to write."""
        self._wrote_at = None

    def may_take(self, run: Run, now: datetime, server_started: datetime | None) -> bool:
        """Whether an expired lease was given up, as far as anybody can tell. Instants are the
        storage's."""
        assert run.lease is not None
        if not self._grace:
            return True
        if server_started is not None and now - server_started < self._grace:
            return False
        tolerated = 1.5 * (run.policy.lease_ttl or self._defaults.lease_ttl)
        tolerated /= self._defaults.renewals_per_ttl
        if self._is_too_soon_after_a_gap(max(tolerated, self._noticeable)):
            return False
        # A lease so short that its gaps go unnoticed here is given what they may be longer.
        extra = max(self._noticeable - tolerated, timedelta(0))
        return run.lease.expires_at + extra <= now

    def _is_too_soon_after_a_gap(self, tolerated: timedelta) -> bool:
        longer = [gap.ended for gap in self._gaps if gap.length > tolerated.total_seconds()]
        last = max(longer, default=float("-inf"))
        return self._clock.elapsed() - last < self._grace.total_seconds()
