"""Messages about runs that clients ask for, and their results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from perdure.core.decide.create import MAX_TAGS, PRIORITIES
from perdure.engine.client.results import RunResult
from perdure.engine.protocol.attempts import HeldLease
from perdure.engine.protocol.fields import (
    MAX_RESULTS,
    MAX_TRIGGERS,
    Answer,
    Instant,
    JsonObject,
    Label,
    Message,
    Number,
    RunId,
    Seconds,
)
from perdure.storage.contract.wire_errors import ErrorTold


class RetryMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """As `Retry`. Durations are seconds."""

    max_attempts: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    initial: Seconds | None = None
    maximum: Seconds | None = None
    factor: float | None = None
    jitter: float | None = None
    kind: str | None = None
    delays: Annotated[tuple[Seconds, ...], Meta(max_length=100)] = ()
    on_exhausted: str | None = None
    poison_threshold: Number | None = None


class OptionsMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """As `TriggerOptions`. Durations are seconds."""

    queue: Label | None = None
    priority: Annotated[int, Meta(ge=0, le=max(PRIORITIES))] | None = None
    run_at: Instant | None = None
    delay: Seconds | None = None
    ttl: Seconds | None = None
    idempotency_key: Label | None = None
    idempotency_ttl: Seconds | None = None
    singleton_key: Label | None = None
    concurrency_key: Label | None = None
    tags: Annotated[dict[Label, Label], Meta(max_length=MAX_TAGS)] | None = None
    meta: dict[str, Any] | None = None
    debug: bool = False
    retry: RetryMessage | None = None
    timeout: Seconds | None = None
    parent_id: RunId | None = None
    root_id: RunId | None = None
    continuation_of: RunId | None = None


class TriggerItem(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A run to make. `request_id` has the form of a run id: the same one again makes no second
    run. `parent`: the run whose handler asks, with its lease's token. Items with the same `batch`
    get the same batch id."""

    request_id: RunId
    task: Label
    payload: JsonObject
    options: OptionsMessage = OptionsMessage()
    parent: HeldLease | None = None
    batch: Label | None = None
    trace_carrier: Annotated[dict[Label, str], Meta(max_length=16)] | None = None


class TriggerRequest(Message, frozen=True, kw_only=True):
    items: Annotated[tuple[TriggerItem, ...], Meta(min_length=1, max_length=MAX_TRIGGERS)]


class TriggeredRun(msgspec.Struct, frozen=True, tag="triggered"):
    """`created` is false if a key's owner was found instead."""

    run_id: str
    created: bool = True


TriggerOutcome = TriggeredRun | ErrorTold


class TriggerAnswer(Answer, frozen=True, kw_only=True):
    """In the order of the items."""

    outcomes: tuple[TriggerOutcome, ...]
    now: datetime


class ResultsRequest(Message, frozen=True, kw_only=True):
    """With `ended_only`, runs that have not ended are left out."""

    run_ids: Annotated[tuple[RunId, ...], Meta(max_length=MAX_RESULTS)]
    ended_only: bool = False


class ResultsAnswer(Answer, frozen=True, kw_only=True):
    """Those of the runs that exist. `next_id`: the answer became too large; ask again for the
    requested ids from this one on."""

    runs: tuple[RunResult, ...] = ()
    next_id: str | None = None
