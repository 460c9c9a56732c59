"""Ids that nobody else makes. Run ids are UUIDv7: they sort by when they were made."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime

RandomBytes = Callable[[int], bytes]


def make_run_id(now: datetime, random_bytes: RandomBytes = secrets.token_bytes) -> str:
    """`run_` and the 32 hexadecimal digits of a UUIDv7 with microsecond order."""
    milliseconds, rest = divmod(round(now.timestamp() * 1_000_000), 1000)
    # The 12 bits after the version hold the fraction of the millisecond (RFC 9562, method 3).
    fraction = rest * 4096 // 1000
    tail = int.from_bytes(random_bytes(8), "big") & ((1 << 62) - 1)
    value = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | tail
    return f"run_{value:032x}"


def make_token(random_bytes: RandomBytes = secrets.token_bytes) -> str:
    """Unguessable: lease tokens, commit ids, worker ids."""
    return random_bytes(16).hex()


class Ids:
    """Where the runtime gets its ids; a simulator gives it seeded bytes."""

    def __init__(self, random_bytes: RandomBytes = secrets.token_bytes) -> None:
        self._random_bytes = random_bytes

    def run_id(self, now: datetime) -> str:
        return make_run_id(now, self._random_bytes)

    def commit_id(self) -> str:
        return make_token(self._random_bytes)

    def token(self) -> str:
        return make_token(self._random_bytes)

    def worker_id(self) -> str:
        """One for each process start; a host name is only a label."""
        return f"worker_{make_token(self._random_bytes)}"
