"""New runs made from ended ones: what is stored for each, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.decide import decide_retry
from perdure.core.json_text import encode_value
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.effects import DeadLetterStatus, KeyKind, close_dead_letter
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, Run
from perdure.engine.definition.task import Task
from perdure.engine.runtime.runtime import Components
from perdure.engine.runtime.write import accept
from perdure.errors import (
    AlreadyRetried,
    InvalidInput,
    PerdureError,
    SequenceConflict,
    SingletonConflict,
)
from perdure.storage.contract.runs import Committed, Existing, Outcome

Payload = Mapping[str, Any]
Tasks = Mapping[str, Task[..., Any]]
DecideAgain = Callable[..., Sequence[Event]]
"""`decide_retry` or `decide_rerun`."""


class RerunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How to make new runs from ended ones. Without `payload` each gets the payload of its own
    original. `again`: also from those that have a retry or rerun."""

    decide: DecideAgain
    actor: Actor
    reason: str | None = None
    payload: Payload | None = None
    again: bool = False
    closes_letter: bool = True


def prepare_rerun(
    components: Components,
    tasks: Tasks,
    run: Run,
    request: RerunRequest,
    new_id: str,
    now: datetime,
) -> Commit:
    """Make the commit that stores the new run. A retry closes the original's dead letter.

    Raises NotAllowed, and InvalidInput if the payload does not fit the task.
    """
    actor, reason = request.actor, request.reason
    limit, task = components.defaults.payload_limit, tasks.get(run.task)
    body = _encode_payload(task, limit, run, request.payload)
    events = request.decide(
        run, new_id, actor, now, reason=reason, payload_json=body, again=request.again
    )
    closed, is_retry = None, request.decide is decide_retry
    if is_retry and run.status is Status.DEAD_LETTERED and request.closes_letter:
        replayed = DeadLetterStatus.REPLAYED
        closed = close_dead_letter(run, replayed, actor, now, new_id, reason=reason)
    return prepare_commit(None, events, components.ids.commit_id(), dead_letter_closed=closed)


def _encode_payload(
    task: Task[..., Any] | None, limit: int, run: Run, payload: Payload | None
) -> msgspec.Raw:
    """Return the payload of the new run, checked if this app has the task."""
    if payload is None:
        if task is not None:
            task.signature.decode(run.payload_json)
        return run.payload_json
    if not isinstance(payload, Mapping):
        raise InvalidInput("payload", f"must be a dict of arguments, not {payload!r:.80}")
    if task is None:
        return encode_value(dict(payload), limit=limit)
    return task.signature.encode(payload, limit)


def accept_rerun(run: Run, outcome: Outcome, chosen_id: str | None) -> bool:
    """Return whether the new run was made now. One whose id the caller chose may exist already.

    Raises SingletonConflict, AlreadyRetried, and SequenceConflict if the dead letter of `run`, the
    original, is closed.
    """
    if isinstance(outcome, SequenceConflict) and outcome.run_id == chosen_id and outcome.actual:
        return False
    accept(outcome)
    if isinstance(outcome, Existing) and outcome.key.kind is KeyKind.SINGLETON:
        raise SingletonConflict(outcome.key.name, outcome.run_id)
    if isinstance(outcome, Existing) and outcome.key.kind is KeyKind.SUCCESSOR:
        raise AlreadyRetried(run.id, "retry", run.status, outcome.run_id)
    if not isinstance(outcome, Committed):
        raise PerdureError(f"unexpected: {outcome}")
    return True
