"""What apps and workers know, written into storage, for those who have no user code.

Servers, command lines and dashboards validate, route and take policies from here. The highest
version of a task wins; without versions, the latest start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar

import msgspec

from perdure.core.json_text import Instant
from perdure.core.run.run import Actor
from perdure.engine.runtime.input import did_you_mean, find_similar
from perdure.engine.runtime.slices import SLICE_BYTES
from perdure.engine.tasks.options import Executor, TaskSettings
from perdure.engine.tasks.target import HttpTarget, Target
from perdure.engine.tasks.task_definition import CodedTask
from perdure.errors import InvalidInput, InvalidPayload, PerdureError, TaskNotFound
from perdure.errors.input import refuse_mistakes
from perdure.storage.contract.runs import Record
from perdure.storage.contract.storage import Storage
from perdure.telemetry import table

EntryT = TypeVar("EntryT")

TASK = "task"
WORKER = "worker"
MOST_CONFLICTS = 20


Replaces = Callable[["TaskEntry", "TaskEntry"], bool]
"""Whether a new entry replaces the known one."""

_JSON_TYPES: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


class TaskEntry(TaskSettings, frozen=True, kw_only=True):
    """One task, as the catalogue knows it. `by_manifest`: no code defines it."""

    target: Target | None = None  # again, because `TaskSettings` has its type for checkers only
    by_manifest: bool = False
    payload_schema: dict[str, Any] | None = None
    result_schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if target_kind(self.target) is not executor_target(self.executor):
            has = (
                "no target"
                if self.target is None
                else f"a target of kind {target_kind(self.target)}"
            )
            problem = f"{self.executor} does not agree with {has}"
            raise InvalidInput("executor", f"{problem} of task {self.name!r:.80}")


def target_kind(target: Target | None) -> Executor | None:
    """What a worker needs to execute it: `http` or `shell`; none without a target."""
    if target is None:
        return None
    return Executor.HTTP if isinstance(target, HttpTarget) else Executor.SHELL


def executor_target(executor: Executor) -> Executor | None:
    """The kind of target that such an executor needs; none: it calls a function."""
    return executor if executor in (Executor.HTTP, Executor.SHELL) else None


class KnownTask(msgspec.Struct):
    """A task without its code."""

    settings: TaskSettings
    signature: None = None
    key_function: None = None
    last_made: Any = None

    @property
    def name(self) -> str:
        return self.settings.name


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's wish that a worker end what it has begun, and then itself."""

    by: Actor
    at: Instant
    reason: str | None = None


class WorkerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as it last said of itself; `seen_at` is the storage's time. It says
    `stopped` last of all. `key_id`: the API key that registered it, set by the server.
    `app.workers.list()` sets `state` (working, draining, stopped, or silent for a lease) and counts
    the leases that the worker holds as `running`; neither is stored.

    `versions` of those tasks that have one; `schemas`: the digest of each task's payload schema;
    `not_importable`: the tasks whose handlers it cannot import now, and why; `loop_lag_seconds`:
    how late its handlers' loop answers; `loop_blocked_by`: the handler that blocks it, and where;
    `awaiting`: runs whose handlers await the result of another run, and which.
    """

    id: str
    host: str
    process_id: int
    started_at: Instant
    concurrency: int
    running: int
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...]
    versions: dict[str, int] = msgspec.field(default_factory=dict)
    schemas: dict[str, str] = msgspec.field(default_factory=dict)
    not_importable: dict[str, str] = msgspec.field(default_factory=dict)
    loop_lag_seconds: float = 0.0
    loop_blocked_by: str = ""
    awaiting: dict[str, str] = msgspec.field(default_factory=dict)
    stopping: bool = False
    stopped: bool = False
    drain: Drain | None = None
    seen_at: Instant | None = None
    key_id: str | None = None
    state: str | None = None

    def is_live(self, since: datetime) -> bool:
        """A worker speaks with every renewal: one silent for a whole lease is as gone as one that
        said so."""
        return not self.stopped and self.seen_at is not None and self.seen_at > since

    def state_since(self, since: datetime) -> str:
        """Return the state of a worker that is silent unless it was seen after `since`."""
        if self.stopped:
            return "stopped"
        if not self.is_live(since):
            return "silent"
        return "draining" if self.stopping else "working"


def entry_of(task: CodedTask) -> TaskEntry:
    schemas = task.signature.schema(), task.signature.result_schema()
    settings = msgspec.structs.asdict(task.settings)
    return TaskEntry(payload_schema=schemas[0], result_schema=schemas[1], **settings)


def settings_of(entry: TaskEntry) -> TaskSettings:
    fields = {field: getattr(entry, field) for field in TaskSettings.__struct_fields__}
    return TaskSettings(**fields)


def wins(new: TaskEntry, known: TaskEntry) -> bool:
    """Whether `new` replaces what is known; the same again changes nothing."""
    return new != known and (new.version or 0) >= (known.version or 0)


async def publish_tasks(
    storage: Storage,
    environment: str,
    entries: Sequence[TaskEntry],
    replaces: Replaces = wins,
) -> None:
    """Write down what this process knows; again where another one was faster."""
    for _ in range(MOST_CONFLICTS):
        known = {r.name: r for r in await storage.records(environment, TASK)}
        records = [
            Record(
                environment=environment,
                kind=TASK,
                name=entry.name,
                version=known[entry.name].version + 1 if entry.name in known else 1,
                body=msgspec.json.encode(entry).decode(),
            )
            for entry in entries
            if entry.name not in known or _is_replaced(known[entry.name], entry, replaces)
        ]
        if not records or all(await storage.put(records)):
            return


def _is_replaced(record: Record, entry: TaskEntry, replaces: Replaces) -> bool:
    known = decode_records([record], read_task)
    return not known or replaces(entry, known[0])


def read_task(record: Record) -> TaskEntry:
    """Decode an entry. Raise InvalidInput if its name differs from its record's."""
    entry = msgspec.json.decode(record.body, type=TaskEntry)
    if entry.name != record.name:
        raise InvalidInput("name", f"differs from its record's, {record.name!r:.80}")
    return entry


async def known_tasks(storage: Storage, environment: str) -> list[TaskEntry]:
    """Return the catalogue, without entries that cannot be read, which is logged."""
    return await decode_in_slices(await storage.records(environment, TASK), read_task)


def decode_records(records: Sequence[Record], read: Callable[[Record], EntryT]) -> list[EntryT]:
    """Return the entries that this code can decode; one damaged record must not hide the rest."""
    entries: list[EntryT] = []
    for record in records:
        try:
            entries.append(read(record))
        except (msgspec.MsgspecError, PerdureError, UnicodeDecodeError) as error:
            name = f"{record.kind} {record.name} of environment {record.environment}"
            table.UNREADABLE_RECORD.log_hourly(name, record=name, error=str(error))
    return entries


async def decode_in_slices(
    records: Sequence[Record], read: Callable[[Record], EntryT]
) -> list[EntryT]:
    """The same for all records of a kind, which may have megabytes: the event loop does
    something else in between."""
    entries: list[EntryT] = []
    size = 0
    for record in records:
        entries += decode_records([record], read)
        size += len(record.body)
        if size >= SLICE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return entries


async def find_task(storage: Storage, environment: str, name: str) -> TaskEntry:
    """Also by a name it had before. Raises TaskNotFound."""
    entries = by_name(await known_tasks(storage, environment))
    if name not in entries:
        raise TaskNotFound(name, find_similar(name, entries))
    return entries[name]


def by_name(entries: Sequence[TaskEntry]) -> dict[str, TaskEntry]:
    """By every name; what is called so now comes before what was called so once."""
    former = {alias: entry for entry in entries for alias in entry.aliases}
    return former | {entry.name: entry for entry in entries}


def check_payload(task: str, schema: dict[str, Any], payload: Mapping[str, Any]) -> None:
    """Names, and types where they are plain. Raises InvalidPayload. Parts of a schema that have
    another form than those that tasks publish are not checked: workers wrote them."""
    body = _definition(schema)
    properties, required = body.get("properties"), body.get("required")
    if not isinstance(properties, dict):
        return
    wrong = _wrong_arguments(task, properties, payload)
    missing = _missing_arguments(task, required if isinstance(required, list) else [], payload)
    refuse_mistakes(chain(wrong, missing))


def _wrong_arguments(
    task: str, properties: dict[str, Any], payload: Mapping[str, Any]
) -> Iterator[InvalidPayload]:
    has_hint = False
    for name, value in payload.items():
        if name not in properties:
            hint = "" if has_hint else did_you_mean(name, properties)
            has_hint = True  # a hint takes long
            yield InvalidPayload(task, name, f"there is no such argument{hint}")
            continue
        wanted = _plain_type(properties[name])
        if wanted is not None and not isinstance(value, _JSON_TYPES[wanted]):
            yield InvalidPayload(task, name, f"must be of type {wanted}, not {value!r:.80}")


def _missing_arguments(
    task: str, required: list[Any], payload: Mapping[str, Any]
) -> Iterator[InvalidPayload]:
    for name in required:
        if isinstance(name, str) and name not in payload:
            yield InvalidPayload(task, name, "is missing")


def payload_arguments(schema: dict[str, Any]) -> dict[str, bool]:
    """Return the arguments that a schema names, and whether each is required."""
    body = _definition(schema)
    properties, required = body.get("properties"), body.get("required")
    names = properties if isinstance(properties, dict) else {}
    return {name: isinstance(required, list) and name in required for name in names}


def _definition(schema: dict[str, Any]) -> dict[str, Any]:
    """The definition that a schema refers to, or the schema itself."""
    reference, definitions = schema.get("$ref"), schema.get("$defs")
    if not (isinstance(reference, str) and isinstance(definitions, dict)):
        return schema
    found = definitions.get(reference.rpartition("/")[2])
    return found if isinstance(found, dict) else schema


def _plain_type(schema: Any) -> str | None:
    wanted = schema.get("type") if isinstance(schema, dict) else None
    return wanted if isinstance(wanted, str) and wanted in _JSON_TYPES else None


async def known_workers(storage: Storage, environment: str) -> list[WorkerEntry]:
    return await decode_in_slices(await storage.records(environment, WORKER), read_worker)


def read_worker(record: Record) -> WorkerEntry:
    entry = msgspec.json.decode(record.body, type=WorkerEntry)
    return msgspec.structs.replace(entry, seen_at=record.seen_at)
