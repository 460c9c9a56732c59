"""What a webhook is told: an event, and its run as it was right after it.

The run is projected from its history up to the event, so that a message says the same however
late it is sent, and however often.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from perdure.core.run.events import RecordedEvent
from perdure.core.run.failure import Failure
from perdure.core.run.reducer import project
from perdure.core.run.run import Run
from perdure.engine.webhooks.webhook import Hook
from perdure.storage.contract.runs import Change
from perdure.storage.contract.storage import Storage
from perdure.telemetry.redactor import HIDDEN, Redactor

TEST = "webhook.test"

_OF_RUN = (
    *("id", "task", "queue", "status", "priority", "batch_id", "parent_id", "schedule_id"),
    *("created_at", "run_at", "started_at", "finished_at"),
)
_OF_FAILURE = ("kind", "type", "message", "fingerprint")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One post to make. `run` is none in a test."""

    id: str
    event: str
    occurred_at: datetime
    data: dict[str, Any]
    cursor: str | None = None
    run: Run | None = None
    sequence: int | None = None

    @property
    def run_id(self) -> str | None:
        return None if self.run is None else self.run.id

    def size(self, hook: Hook) -> int:
        """Return the bytes of the body's largest parts."""
        if self.run is None or not hook.with_payload:
            return 0
        result = self.run.result_json
        return len(bytes(self.run.payload_json)) + (0 if result is UNSET else len(bytes(result)))

    def body(self, hook: Hook, redactor: Redactor) -> bytes:
        """The envelope is that of Standard Webhooks. Made when it is sent: payloads are large."""
        data = {"environment": hook.environment, "webhook": hook.name, **self.data}
        if self.run is not None:
            data["run"] = _summary(self.run, hook.with_payload)
        envelope = {
            "type": self.event,
            "timestamp": self.occurred_at,
            "data": _hidden(data, redactor),
        }
        return msgspec.json.encode(envelope)


def trial(now: datetime, token: str) -> Message:
    """What an operator sends to see whether it arrives."""
    return Message(id=f"test_{token}", event=TEST, occurred_at=now, data={"occurred_at": now})


def message_id(run_id: str, sequence: int) -> str:
    """The same however often it is sent, so that receivers can tell. No dots: the signature has
    them between its parts."""
    return f"{run_id}-{sequence}"


async def messages_for(hook: Hook, changes: Sequence[Change], storage: Storage) -> list[Message]:
    """What these changes call for, in the order of the feed."""
    wanted = [
        (change, recorded)
        for change in changes
        for recorded in change.events
        if _is_wanted(hook, recorded)
    ]
    if not wanted:
        return []
    runs = await storage.get(list({change.run_id for change, _ in wanted}))
    concerned = {run.id for run in runs.values() if hook.interest.may_concern(run)}
    seen: dict[str, dict[int, Run]] = {}
    for run_id in concerned:
        sequences = {it.sequence for change, it in wanted if change.run_id == run_id}
        seen[run_id] = _as_it_was(await storage.events(run_id), sequences)
    return [
        _message(change, recorded, run)
        for change, recorded in wanted
        if (run := seen.get(change.run_id, {}).get(recorded.sequence)) is not None
        and hook.interest.concerns(run)
    ]


def _is_wanted(hook: Hook, recorded: RecordedEvent) -> bool:
    if recorded.event.environment != hook.environment or not hook.interest.wants(recorded.type):
        return False
    earliest = hook.progress.not_before
    return earliest is None or recorded.occurred_at >= earliest


def _as_it_was(history: Sequence[RecordedEvent], sequences: Collection[int]) -> dict[int, Run]:
    """The run right after each of these; of one that was pruned meanwhile, nothing."""
    run: Run | None = None
    seen: dict[int, Run] = {}
    for recorded in history:
        run = project(run, [recorded.event], recorded.sequence - 1)
        if recorded.sequence in sequences:
            seen[recorded.sequence] = run
    return seen


def _message(change: Change, recorded: RecordedEvent, run: Run) -> Message:
    return Message(
        id=message_id(run.id, recorded.sequence),
        event=recorded.type.value,
        occurred_at=recorded.occurred_at,
        cursor=change.cursor,
        run=run,
        sequence=recorded.sequence,
        data={
            "sequence": recorded.sequence,
            "occurred_at": recorded.occurred_at,
            "actor": recorded.actor,
        },
    )


def _summary(run: Run, with_payload: bool) -> dict[str, Any]:
    summary = {name: getattr(run, name) for name in _OF_RUN} | {
        "tags": run.tags,
        "attempts": run.counters.attempts,
        "failures": run.counters.failures,
        "reason": run.reason,
        "failure": None if run.failure is None else _failure(run.failure),
    }
    if with_payload:
        summary["payload"] = run.payload
        if run.result_json is not UNSET:
            summary["result"] = run.result
    return summary


def _failure(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in _OF_FAILURE}


def _hidden(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """The data without secrets. If an app's `redact` fails, only what names the run is sent."""
    plain: dict[str, Any] = msgspec.to_builtins(data)
    hidden = redactor.fields(plain)
    if hidden.keys() == {"left_out"}:
        run = {name: plain.get("run", {}).get(name) for name in ("id", "status")}
        return {"left_out": f"{HIDDEN}: {hidden['left_out']}", "run": run}
    return hidden
