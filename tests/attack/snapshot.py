"""The state of a tenant, without what differs between two runs of one scenario: ids and times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from attack.honest import Honest
from perdure.core.run.run import Actor, Run
from perdure.engine.operators.audit_log import AuditLog, Verification
from perdure.engine.operators.keys import Keys
from perdure.engine.tasks.catalogue import known_tasks
from perdure.storage.contract.inspection import LetterFilter
from perdure.storage.contract.runs import RunFilter

BULK_TASK = "perdure.bulk"
"""The server's own worker serves it."""
MAX_READ = 1000
State = dict[str, Any]
_VARYING = re.compile(r"(^|_)(at|since|until|cursor|anchor|hash)$")


async def read_state(honest: Honest) -> State:
    """Return everything that the tenant has, by kind."""
    app, storage, own = honest.app, honest.app.storage, honest.environment
    found = await storage.find(RunFilter(environment=own), limit=MAX_READ)
    runs = sorted(found.runs, key=lambda run: run.id)
    labels = label_runs(honest, runs)
    audit = [it.entry for it in await AuditLog(app.runtime).read(limit=MAX_READ)]
    limits, workers = await storage.limits(own), await app.workers.list()
    counts = await storage.counts(own)
    state: State = {
        "runs": {labels[run.id]: await _run_state(honest, run, labels) for run in runs},
        "letters": await _letters(honest, labels),
        "counts": {f"{queue} {status}": count for (queue, status), count in counts.items()},
        "schedules": [_plain(it) for it in await app.schedules.list()],
        "webhooks": await _webhooks(honest, labels),
        "posts": sorted(_posted(it.json, labels) for it in honest.receiver.taken),
        "audit": [_audited(honest, entry, labels) for entry in audit],
        "audit_flaws": [flaw async for flaw in Verification(storage, own).flaws()],
        "workers": {it.id: _worker(honest, it) for it in workers if it.tasks != (BULK_TASK,)},
        "catalogue": [_plain(it) for it in await known_tasks(storage, own)],
        "limits": [_plain(it) for it in limits],
        "keys": {it.id: _key(it) for it in await Keys(app.runtime).list() if it.environment == own},
    }
    return _shown(state, honest)


def label_runs(honest: Honest, runs: Sequence[Run]) -> dict[str, str]:
    """Return a name for each run; those of a schedule are numbered by their nominal time."""
    labels = {run.id: honest.labels.get(run.id, f"stranger {run.id}") for run in runs}
    scheduled = [run for run in runs if run.source.nominal_time is not None]
    scheduled.sort(key=lambda run: str(run.source.nominal_time))
    seen: Counter[str] = Counter()
    for run in scheduled:
        name = str(run.source.schedule_id)
        labels[run.id] = f"{name} {seen[name]}"
        seen[name] += 1
    return labels


async def _run_state(honest: Honest, run: Run, labels: dict[str, str]) -> State:
    storage = honest.app.storage
    events = [it.event for it in await storage.events(run.id)]
    progress = (await storage.progress([run.id])).get(run.id)
    return {
        "task": run.task,
        "queue": run.queue,
        "status": run.status,
        "payload": run.payload,
        "result": run.result,
        "failure": None if run.failure is None else run.failure.message,
        "counters": run.counters,
        "policy": run.policy,
        **_origin(run, labels),
        "created_by": _role(honest, run.created_by),
        "lease": None if run.lease is None else run.lease.worker_id,
        "events": [(it.type, _role(honest, it.actor), getattr(it, "attempt", 0)) for it in events],
        "logs": [(it.attempt, it.number, it.message) for it in await storage.logs(run.id)],
        "progress": None if progress is None else (progress.attempt, progress.fraction),
    }


def _origin(run: Run, labels: dict[str, str]) -> State:
    """Why the run exists, and which runs led to it. The nominal time of a schedule differs; the
    run's label numbers it."""
    source = run.source
    linked = {
        "source_run": source.run_id,
        "parent": run.parent_id,
        "root": run.root_id,
        "continuation_of": run.continuation_of,
    }
    return {
        "source": (source.type, source.schedule_id, source.reason, source.rule_id, source.again),
        "is_nominal": source.nominal_time is not None,
        "depth": run.lineage_depth,
        **{name: labels.get(str(it), it) for name, it in linked.items()},
    }


async def _letters(honest: Honest, labels: dict[str, str]) -> list[Any]:
    wanted = LetterFilter(environment=honest.environment)
    found = await honest.app.storage.find_dead_letters(wanted, limit=MAX_READ)
    return sorted((labels[it.run_id], it.status, it.reason) for it in found.letters)


async def _webhooks(honest: Honest, labels: dict[str, str]) -> list[Any]:
    found = []
    for hook in await honest.app.webhooks.list():
        posts = await honest.app.webhooks.deliveries(hook.name, limit=MAX_READ)
        told = sorted((labels.get(str(it.run_id)), it.event, it.outcome) for it in posts)
        found.append((hook.name, hook.state, hook.url == honest.receiver.url, hook.failures, told))
    return found


def _posted(message: Any, labels: dict[str, str]) -> tuple[str, str]:
    run_id = message["data"]["run"]["id"]
    return message["type"], labels.get(run_id, f"stranger {run_id}")


def _audited(honest: Honest, entry: Any, labels: dict[str, str]) -> Any:
    target = labels.get(entry.target, entry.target)
    by = _role(honest, entry.actor)
    return entry.action, target, by, entry.outcome, entry.reason, _plain(entry.details)


def _worker(honest: Honest, entry: Any) -> Any:
    by = honest.roles.get(entry.key_id, entry.key_id)
    return by, entry.stopping, entry.stopped, entry.drain, entry.tasks


def _key(key: Any) -> Any:
    return key.scopes, key.revoked_at is not None, key.rotated_at is not None, len(key.secrets)


def _role(honest: Honest, actor: Actor) -> str:
    text = f"{actor.type} {actor.id}"
    for known, role in honest.roles.items():
        text = text.replace(known, role)
    return text


def _plain(value: Any) -> Any:
    """Return it without instants and hashes, which differ."""
    return _without_varying(msgspec.json.decode(msgspec.json.encode(value)))


def _without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not _VARYING.search(k)}
        return {k: _without_varying(v) for k, v in kept.items()}
    return [_without_varying(it) for it in value] if isinstance(value, list) else value


def _shown(state: State, honest: Honest) -> State:
    """Return it without the environment's name, which differs."""
    text = msgspec.json.encode(state).decode()
    for known, role in honest.roles.items():
        text = text.replace(known, role)
    decoded: State = msgspec.json.decode(text.replace(honest.environment, "environment"))
    return decoded


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Return where two states differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted({*before, *after})
        found = [differences(before.get(it), after.get(it), f"{path}.{it}") for it in names]
        return [line for lines in found for line in lines]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [it for n, pair in pairs for it in differences(*pair, f"{path}[{n}]")]
    return [] if before == after else [f"{path}: {before!r:.600} became {after!r:.600}"]
