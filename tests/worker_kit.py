"""Requests of the worker protocol, as a worker of ours would send them."""

from __future__ import annotations

from typing import Any

import msgspec

from builders import TASK
from perdure.core.decide.ending import Ending, Returned
from perdure.core.json_text import encode_value
from perdure.core.run.run import Policy, Run
from perdure.engine.execution.worker_backend import Finished
from perdure.engine.protocol.attempts import ClaimAnswer, ClaimMessage, Report
from perdure.engine.protocol.triggers import (
    TriggerAnswer,
    TriggeredRun,
    TriggerItem,
    TriggerRequest,
)
from perdure.engine.protocol.values import heartbeat_of, report_of
from perdure.engine.protocol.workers import HeartbeatAnswer
from perdure.engine.remote.server import Server
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.engine.tasks.catalogue import TaskEntry, WorkerEntry
from perdure.engine.tasks.options import Executor
from perdure.storage.contract.server import ServerCall
from remote_kit import World
from storage_kit import CLOCK, now, token_of

RUN_ID = f"run_{1:032x}"
TOKEN = f"{1:032x}"
WORKER_ID = "worker_2"
MORNING = "2026-01-01T09:00:00Z"

REQUESTS: dict[str, Any] = {
    "hello": {},
    "declare": {"tasks": [], "queues": [], "schedules": []},
    "heartbeat": {
        "id": WORKER_ID, "host": "here", "process_id": 1, "started_at": MORNING,
        "concurrency": 1, "running": 0, "queues": None, "tasks": ["double"],
    },
    "claim": {"worker_id": WORKER_ID, "tokens": [TOKEN], "tasks": ["nothing"], "lease_ttl": 30},
    "renew": {"worker_id": WORKER_ID, "leases": [], "lease_ttl": 30},
    "report": {"reports": [
        {"run_id": RUN_ID, "token": TOKEN, "attempt": 1, "ending": {"type": "stopped"}},
    ]},
    "return_claims": {"worker_id": WORKER_ID, "tokens": [TOKEN]},
    "log": {"batches": [{"run_id": RUN_ID, "token": TOKEN, "attempt": 1}]},
    "trigger": {"items": [{"request_id": RUN_ID, "task": "double", "payload": {"number": 1}}]},
    "results": {"run_ids": [RUN_ID]},
    "hints": {"session": TOKEN, "wait": 0},
    "tasks": {},
}  # fmt: skip
"""One good request for each operation."""


def an_entry(worker_id: str = WORKER_ID, **fields: Any) -> WorkerEntry:
    """What a worker says of itself."""
    usual: dict[str, Any] = {
        "host": "here",
        "process_id": 1,
        "started_at": CLOCK.now(),
        "concurrency": 1,
        "running": 0,
        "queues": None,
        "tasks": ("double",),
    }
    return WorkerEntry(id=worker_id, **usual | fields)


def a_task(name: str = "double", **fields: Any) -> TaskEntry:
    usual: dict[str, Any] = {"queue": "default", "executor": Executor.ASYNC, "policy": Policy()}
    return TaskEntry(name=name, **usual | fields)


def finished(run: Run, ending: Ending | None = None) -> Finished:
    """An attempt that ended, by default by returning nothing."""
    return Finished(run, token_of(run), ending or Returned(encode_value(None)))


def a_report(run: Run, ending: Ending | None = None) -> Report:
    return report_of(finished(run, ending))


async def ask(server: Server, operation: str, body: Any) -> Any:
    """The answer to a request, as plain data. Raise what the server raised."""
    call = ServerCall(operation=operation, body=msgspec.json.encode(body))
    return msgspec.json.decode(await server.client.call(call))


async def worker(world: World, *scopes: str, worker_id: str = WORKER_ID) -> Server:
    """A client with a key of its own, and a registered worker."""
    server = await world.server("work", *scopes)
    await server.ask(heartbeat_of(an_entry(worker_id)), HeartbeatAnswer)
    return server


def a_claim(worker_id: str = WORKER_ID, **fields: Any) -> ClaimMessage:
    usual: dict[str, Any] = {"tokens": (make_token(),), "tasks": (TASK,), "lease_ttl": 30.0}
    return ClaimMessage(worker_id=worker_id, **usual | fields)


async def claimed(server: Server, **fields: Any) -> Run:
    [run] = (await server.ask(a_claim(**fields), ClaimAnswer)).runs
    return run


def an_item(**fields: Any) -> TriggerItem:
    """A run to trigger."""
    usual: dict[str, Any] = {
        "request_id": make_run_id(now()),
        "task": TASK,
        "payload": msgspec.Raw(b"{}"),
    }
    return TriggerItem(**usual | fields)


async def triggered(server: Server, *items: TriggerItem) -> list[Any]:
    """What became of each: a triggered run, or an error."""
    answer = await server.ask(TriggerRequest(items=items), TriggerAnswer)
    return [it if isinstance(it, TriggeredRun) else it.value() for it in answer.outcomes]
