"""Shares of what a server has little of, so that no key and no environment can take all of it.

`Shares` counts holders and refuses one too many. `KeyGates` makes the surplus wait instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from perdure.web.auth.caller import Caller
from perdure.web.problems import Refusal, RequestRefused


class Share(msgspec.Struct, frozen=True):
    """How many may be held: in all, by one key, and by the keys of one environment."""

    total: int
    per_key: int
    per_environment: int


def make_share(total: int, per_key: int | None = None) -> Share:
    """A quarter for each key, unless `per_key` says otherwise; half for each environment, or as
    many as one key may hold."""
    key = max(1, total // 4) if per_key is None else min(per_key, total)
    return Share(total, key, max(total // 2, key))


class Shares:
    """Counts what is held. A caller without a key, on a server that is still open, shares with
    nobody else: only the total holds for it."""

    def __init__(self, what: str, share: Share, refusal: Refusal, retry_after_s: float) -> None:
        self._what = what
        self._share = share
        self._refusal = refusal
        self._retry_after_s = retry_after_s
        self._count = 0
        self._by_key: Counter[str] = Counter()
        self._by_environment: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are held."""
        return self._count

    def acquire(self, key: str, environment: str) -> None:
        """Raises RequestRefused, a 503 with Retry-After, if a share is exhausted."""
        self._check(self._count, self._share.total, "this server has")
        if key:
            self._check(self._by_key[key], self._share.per_key, "a key may have")
            held = self._by_environment[environment]
            self._check(held, self._share.per_environment, "the keys of an environment may have")
        self._count += 1
        self._by_key[key] += 1
        self._by_environment[environment] += 1

    def release(self, key: str, environment: str) -> None:
        self._count -= 1
        for held, name in ((self._by_key, key), (self._by_environment, environment)):
            held[name] -= 1
            if not held[name]:
                del held[name]

    @contextmanager
    def hold(self, caller: Caller) -> Iterator[None]:
        """Acquire for as long as the block lasts."""
        self.acquire(caller.id, caller.environment)
        try:
            yield
        finally:
            self.release(caller.id, caller.environment)

    def _check(self, held: int, limit: int, whose: str) -> None:
        if held < limit:
            return
        problem = f"{whose} {limit} {self._what} at once, and all of them are taken; try later"
        raise RequestRefused(self._refusal, problem, self._retry_after_s)
