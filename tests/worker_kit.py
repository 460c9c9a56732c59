"""Requests of the worker protocol, as a worker of ours would send them."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.run import Policy, Run
from perdure.core.values import encode_value
from perdure.engine.catalogue import TaskEntry, WorkerEntry
from perdure.engine.options import Executor
from perdure.engine.outcome import Ending, Returned
from perdure.engine.protocol.attempts import Report
from perdure.engine.protocol.values import report_of
from perdure.engine.remote.server import Server
from perdure.engine.worker_backend import Finished
from perdure.storage.server_client import ServerCall
from storage_kit import CLOCK, token_of

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
