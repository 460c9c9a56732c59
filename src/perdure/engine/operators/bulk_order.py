"""Bulk orders as data: an action, a filter, and the report of what was done."""

from __future__ import annotations

from enum import StrEnum
from typing import TypedDict

import msgspec

from perdure.core.json_text import Instant
from perdure.core.run.lifecycle import ACTIVE, FAILURES, LEASED, TERMINAL, Status
from perdure.core.run.run import Actor


class Words(TypedDict, total=False):
    """A filter of runs, or of dead letters; always of the environment that the order is in."""

    status: str | None
    task: str | None
    queue: str | None
    tag: tuple[str, str] | None
    batch_id: str | None
    schedule_id: str | None
    parent_id: str | None
    created_after: Instant | None
    created_before: Instant | None
    finished_after: Instant | None
    finished_before: Instant | None
    failure_kind: str | None
    fingerprint: str | None
    text: str | None


class Action(StrEnum):
    """What can be ordered about many at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    RERUN = "rerun"
    REPLAY = "replay"
    DISCARD = "discard"


OF_LETTERS = frozenset({Action.REPLAY, Action.DISCARD})
ABOUT: dict[Action, frozenset[Status]] = {
    Action.CANCEL: ACTIVE - {Status.CANCELLATION_REQUESTED},
    Action.PAUSE: ACTIVE - LEASED - {Status.WAITING, Status.PAUSED},
    Action.RESUME: frozenset({Status.PAUSED}),
    Action.RETRY: FAILURES,
    Action.RERUN: TERMINAL,
}
"""Runs in other statuses do not fit, whatever else does: the order would change nothing."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with everything that fits `words` and was there `before`."""

    action: Action
    words: Words
    before: Instant
    by: Actor
    reason: str | None = None


class Report(msgspec.Struct, frozen=True):
    """Of the last attempt: how many it looked at, and how many were refused for what reason."""

    seen: int
    done: int
    refused: dict[str, int]
