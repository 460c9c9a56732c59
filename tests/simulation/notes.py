"""What a simulation writes down: its trace, the rare states it saw, and the problem it found."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

POINTS = (
    "a key waited for its turn",
    "ambiguous claim settled",
    "ambiguous commit settled",
    "cancelled before a claim",
    "cancelled by recovery",
    "cancelled while running",
    "child spawned",
    "clock of the database set back",
    "connection gone silent",
    "claim landed late",
    "crash recovered",
    "crashed after a commit",
    "dead letter closed",
    "dead connection met by a handler",
    "dead-lettered",
    "duplicate hint",
    "effect and success together",
    "expired",
    "expired lease renewed",
    "failed for good",
    "handed over at shutdown",
    "idempotency conflict",
    "lease renewed",
    "occurrence skipped",
    "occurrence superseded",
    "node paused past a lease",
    "outage survived with a lease",
    "outcome overtaken by a cancellation",
    "parked and freed",
    "paused and resumed",
    "pruned",
    "queue paused and resumed",
    "rate waited for",
    "limit overruled and reset",
    "reservation lapsed",
    "recovery lost to a renewal",
    "redelivered",
    "released",
    "retry after failure",
    "returned_existing",
    "run again by its own former owner",
    "schedule paused and resumed",
    "schedulers met",
    "singleton refused",
    "success despite a cancellation",
    "timed out",
    "transaction's answer lost",
    "transaction's lease lost",
    "transaction rolled back",
    "trigger answered late",
    "waited and woken",
    "write refused while read-only",
    "zombie outcome refused",
)
"""Rare states that a campaign must reach, or it has proven little."""


class Notes:
    """One scenario's notebook."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.lines: list[str] = []
        self.seen: Counter[str] = Counter()
        self.problem: str | None = None
        self.on_problem: Callable[[], None] = lambda: None

    def say(self, who: str, what: str) -> None:
        self.lines.append(f"{self._time():9.4f} {who:<11} {what}")

    def sometimes(self, name: str) -> None:
        """A coverage point was reached."""
        assert name in POINTS, name
        self.seen[name] += 1

    def fail(self, problem: str) -> None:
        """An invariant does not hold. The first problem counts, and ends the scenario."""
        if self.problem is None:
            self.problem = problem
            self.say("PROBLEM", problem)
            self.on_problem()

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
