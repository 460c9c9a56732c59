"""The seed systems' words. Accepted as filter aliases, and used to compare histories with the
tables those systems published; nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.errors import InvalidInput


class Seed(StrEnum):
    WAKEPLANE = "Wakeplane"
    STRAIT = "Strait"
    ATTUNE = "Attune"
    RUNLANE = "Runlane"


class StatusFilter(msgspec.Struct, frozen=True):
    """Runs in any of these statuses; where kinds are given, with one of these failure kinds."""

    statuses: tuple[Status, ...]
    kinds: tuple[FailureKind, ...] = ()


_S, _K = Status, FailureKind

# One row a status: its word in Wakeplane, Strait, Attune and Runlane; None where there is none.
WORDS: dict[Status, tuple[str | None, str | None, str | None, str | None]] = {
    _S.SCHEDULED: (None, "delayed", None, "scheduled"),
    _S.QUEUED: ("pending", "queued", "requested", "queued"),
    _S.CLAIMED: ("claimed", "dequeued", "scheduled", "running"),
    _S.RUNNING: ("running", "executing", "running", "running"),
    _S.RETRYING: ("retry_scheduled", "queued", "requested", "retrying"),
    _S.RELEASED: (None, "queued", None, "released"),
    _S.WAITING: (None, "waiting", "running", "released"),
    _S.PAUSED: (None, None, None, None),
    _S.CANCELLATION_REQUESTED: ("running", "executing", "canceling", "cancellation_requested"),
    _S.SUCCEEDED: ("succeeded", "completed", "completed", "succeeded"),
    _S.FAILED: ("failed", "failed", "failed", "failed"),
    _S.DEAD_LETTERED: ("dead_lettered", "dead_letter", "failed", "failed"),
    _S.CANCELLED: ("cancelled", "canceled", "cancelled", "cancelled"),
    _S.EXPIRED: (None, "expired", None, None),
    _S.SKIPPED: ("skipped", None, None, None),
}

# Two seeds say by the failure's kind how a run failed.
FAILED_WORDS: dict[Seed, dict[FailureKind, str]] = {
    Seed.STRAIT: {
        _K.TIMEOUT: "timed_out",
        _K.CRASH: "crashed",
        _K.SYSTEM: "system_failed",
    },
    Seed.ATTUNE: {_K.TIMEOUT: "timeout", _K.CRASH: "abandoned"},
}

_ENDED_BADLY = (_S.FAILED, _S.DEAD_LETTERED)

ALIASES: dict[str, StatusFilter] = {
    "pending": StatusFilter((_S.QUEUED,)),
    "requested": StatusFilter((_S.QUEUED, _S.RETRYING)),
    "scheduling": StatusFilter((_S.QUEUED, _S.RETRYING)),
    "dequeued": StatusFilter((_S.CLAIMED,)),
    "executing": StatusFilter((_S.RUNNING, _S.CANCELLATION_REQUESTED)),
    "delayed": StatusFilter((_S.SCHEDULED,)),
    "retry_scheduled": StatusFilter((_S.RETRYING,)),
    "canceling": StatusFilter((_S.CANCELLATION_REQUESTED,)),
    "cancelling": StatusFilter((_S.CANCELLATION_REQUESTED,)),
    "completed": StatusFilter((_S.SUCCEEDED,)),
    "canceled": StatusFilter((_S.CANCELLED,)),
    "dead_letter": StatusFilter((_S.DEAD_LETTERED,)),
    "timed_out": StatusFilter(_ENDED_BADLY, (_K.TIMEOUT,)),
    "timeout": StatusFilter(_ENDED_BADLY, (_K.TIMEOUT,)),
    "crashed": StatusFilter(_ENDED_BADLY, (_K.CRASH,)),
    "abandoned": StatusFilter(_ENDED_BADLY, (_K.CRASH,)),
    "system_failed": StatusFilter(_ENDED_BADLY, (_K.SYSTEM,)),
    "rejected": StatusFilter(_ENDED_BADLY, (_K.REJECTED,)),
}


MAX_WORD = 80
"""Characters of a word that are compared with each status."""


def resolve_status(word: str) -> StatusFilter:
    """Our status or a seed's word for it. Raises InvalidInput that lists what there is, with the
    nearest status, if one is near."""
    if word in Status.__members__.values():
        return StatusFilter((Status(word),))
    if word in ALIASES:
        return ALIASES[word]
    hint = _nearest_status(word[:MAX_WORD])
    known = f"there are: {', '.join(Status)}{hint}"
    raise InvalidInput("status", f"{word!r:.80} is not a status; {known}")


def _nearest_status(word: str) -> str:
    from difflib import get_close_matches  # only to explain a mistake

    near = get_close_matches(word, list(Status), 1)
    return f"; did you mean {near[0]}?" if near else ""


def parse_statuses(words: Iterable[str]) -> StatusFilter:
    """Return the filter for runs in any of these statuses. Raise InvalidInput for words that one
    filter cannot join."""
    found = [resolve_status(word) for word in words]
    kinds = tuple(dict.fromkeys(kind for it in found for kind in it.kinds))
    if kinds and not all(it.kinds for it in found):
        problem = (
            "words for a kind of failure cannot be mixed with statuses; filter by failure_kind"
        )
        raise InvalidInput("status", problem)
    return StatusFilter(tuple(dict.fromkeys(it for one in found for it in one.statuses)), kinds)


def seed_word(seed: Seed, run: Run) -> str | None:
    """What `seed` would call the state this run is in."""
    if run.status is Status.FAILED and run.failure is not None:
        by_kind = FAILED_WORDS.get(seed, {})
        if run.failure.kind in by_kind:
            return by_kind[run.failure.kind]
    return WORDS[run.status][list(Seed).index(seed)]
