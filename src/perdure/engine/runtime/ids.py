"""Ids that nobody else makes. Run ids are UUIDv7: they sort by when they were made, and those of
one instant by which was made first."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from datetime import datetime

RandomBytes = Callable[[int], bytes]

POOL = 8192
STRIDE = 1 << 32
"""Ids of one instant lie so far apart at most."""


class Entropy:
    """The system's random bytes, fetched many at a time: a fetch gives up the interpreter lock,
    which a busy worker would have to wait for, id by id."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)  # no two processes may share a pool

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._pool = b""
        self._used = 0

    def __call__(self, count: int) -> bytes:
        with self._lock:
            if self._used + count > len(self._pool):
                self._pool, self._used = os.urandom(max(POOL, count)), 0
            self._used += count
            return self._pool[self._used - count : self._used]


ENTROPY = Entropy()


def make_run_id(now: datetime, random_bytes: RandomBytes = ENTROPY) -> str:
    """`run_` and the 32 hexadecimal digits of a UUIDv7 with microsecond order."""
    return _run_id(_microseconds(now), _tail(random_bytes(8)))


def _tail(eight_bytes: bytes) -> int:
    return int.from_bytes(eight_bytes, "big") & ((1 << 62) - 1)


def _microseconds(now: datetime) -> int:
    return round(now.timestamp() * 1_000_000)


def _run_id(microseconds: int, tail: int) -> str:
    milliseconds, rest = divmod(microseconds, 1000)
    # The 12 bits after the version hold the fraction of the millisecond (RFC 9562, method 3).
    fraction = rest * 4096 // 1000
    value = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | tail
    return f"run_{value:032x}"


class DerivedIds:
    """Run ids of one instant, each of which follows from `seed` and a name."""

    def __init__(self, now: datetime, seed: str) -> None:
        self._microseconds = _microseconds(now)
        self._seeded = hashlib.sha256(f"{seed} ".encode())

    def derive(self, name: str) -> str:
        digest = self._seeded.copy()
        digest.update(name.encode())
        return _run_id(self._microseconds, _tail(digest.digest()[:8]))


class Line:
    """Run ids of one instant, each after the one before: what was asked for together is claimed in
    that order, and lies side by side in the database."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._microseconds = 0
        self._tail = 0

    def next(self, now: datetime, random_bytes: RandomBytes) -> str:
        microseconds = _microseconds(now)
        chance = int.from_bytes(random_bytes(8), "big")
        with self._lock:
            if microseconds == self._microseconds:
                self._tail += 1 + chance % STRIDE
            else:
                self._tail = chance >> 3  # of 62 bits one is free, so that there is always a next
            self._microseconds = microseconds
            return _run_id(microseconds, self._tail)


def make_token(random_bytes: RandomBytes = ENTROPY) -> str:
    """Unguessable: lease tokens, commit ids, worker ids."""
    return random_bytes(16).hex()


class Ids:
    """Where the runtime gets its ids; a simulator gives it seeded bytes."""

    def __init__(self, random_bytes: RandomBytes = ENTROPY) -> None:
        self._random_bytes = random_bytes
        self._line = Line()

    def run_id(self, now: datetime) -> str:
        return self._line.next(now, self._random_bytes)

    def commit_id(self) -> str:
        return make_token(self._random_bytes)

    def token(self) -> str:
        return make_token(self._random_bytes)

    def tokens(self, count: int) -> tuple[str, ...]:
        """So many at once."""
        digits = self._random_bytes(16 * count).hex()
        return tuple(digits[at : at + 32] for at in range(0, len(digits), 32))

    def random(self, count: int) -> bytes:
        """For secrets."""
        return self._random_bytes(count)

    def worker_id(self) -> str:
        """One for each process start; a host name is only a label."""
        return f"worker_{make_token(self._random_bytes)}"
