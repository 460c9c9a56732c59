"""How many requests a caller may make: one token bucket a key, in this process's memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure.core.limits.rates import Rate, take, tokens
from perdure.storage.contract.runs import Clock
from perdure.web.problems import Refusal, RequestRefused

_START = datetime(2000, 1, 1, tzinfo=UTC)
MOST_BUCKETS = 10_000


class Throttle:
    """Several server processes allow as much each."""

    def __init__(self, rate: Rate | None, clock: Clock) -> None:
        self._pace = None if rate is None else rate.pace
        self._clock = clock
        self._opens_at: dict[str, datetime] = {}

    def admit(self, caller: str) -> None:
        """Raises RequestRefused that says when to come again."""
        if self._pace is None:
            return
        now = _START + timedelta(seconds=self._clock.elapsed())
        opens_at = self._opens_at.get(caller)
        if tokens(opens_at, self._pace, now) == 0 and opens_at is not None:
            wait = (opens_at - now).total_seconds()
            problem = f"this key makes too many requests; come again in {wait:.3f} s"
            raise RequestRefused(Refusal.RATE_LIMITED, problem, wait)
        if len(self._opens_at) >= MOST_BUCKETS:
            self._opens_at = {who: at for who, at in self._opens_at.items() if at > now}
        self._opens_at[caller] = take(opens_at, self._pace, now)
