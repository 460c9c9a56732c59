"""Whether a run is the one a test speaks of; and if not, how it differs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from perdure.core.run.run import Run
from perdure.engine.definition.task import Task
from perdure.engine.runtime.input import Duration, duration
from perdure.errors import InvalidInput

MISSING = "nothing"


class Wanted(msgspec.Struct, kw_only=True):
    """What a run must look like; what is not given does not matter."""

    payload: Mapping[str, Any] = {}
    exactly: bool = False
    idempotency_key: str | None = None
    singleton_key: str | None = None
    concurrency_key: str | None = None
    queue: str | None = None
    priority: int | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    ttl: Duration | None = None
    tags: Mapping[str, str] | None = None

    def __str__(self) -> str:
        """The way a call would say it."""
        said = {key: repr(value) for key, value in self.payload.items()}
        for name in OPTIONS:
            if getattr(self, name) is not None:
                said[name] = _shown(getattr(self, name))
        text = ", ".join(f"{key}={value}" for key, value in said.items())
        return f"exactly {text or 'no arguments'}" if self.exactly else text

    def differences(self, run: Run, task: Task[..., Any] | None) -> list[str]:
        """One line each: what was wanted, and what is. Empty: it is the one."""
        return _payload_differences(self, run, task) + _option_differences(self, run)


OPTIONS = (
    "idempotency_key",
    "singleton_key",
    "concurrency_key",
    "queue",
    "priority",
    "delay",
    "run_at",
    "ttl",
    "tags",
)


def check_payload(wanted: Wanted, task: Task[..., Any] | None) -> None:
    """A typing error in a test must not look like a run that is missing."""
    if task is None:
        return
    known = set(task.signature._parameters)
    unknown = sorted(set(wanted.payload) - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidInput(
            "payload", f"{task.name} has no parameter {unknown[0]!r}; it has {names}"
        )


def _payload_differences(wanted: Wanted, run: Run, task: Task[..., Any] | None) -> list[str]:
    plain = run.payload
    typed = plain if task is None else task.signature.decode(run.payload_json)
    lines = []
    for name, value in wanted.payload.items():
        if name not in plain:
            lines.append(f"{name}: wanted {value!r}, got {MISSING}")
        elif not (_fits(value, typed[name]) or _fits(value, plain[name])):
            lines.append(f"{name}: wanted {value!r}, got {typed[name]!r}")
    if wanted.exactly:
        extra = sorted(set(plain) - set(wanted.payload))
        lines += [f"{name}: wanted {MISSING}, got {typed[name]!r}" for name in extra]
    return lines


def _fits(wanted: Any, got: Any) -> bool:
    """Equal; of mappings, only what is wanted counts, at every depth."""
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        return all(key in got and _fits(value, got[key]) for key, value in wanted.items())
    return bool(wanted == got)


def _option_differences(wanted: Wanted, run: Run) -> list[str]:
    lines = []
    for name in OPTIONS:
        value = getattr(wanted, name)
        if value is None:
            continue
        if name in ("delay", "ttl"):
            value = duration(value, name)
        got = _option(run, name)
        if not _fits(value, got):
            shown = MISSING if got is None else _shown(got)
            lines.append(f"{name}: wanted {_shown(value)}, got {shown}")
    return lines


def _option(run: Run, name: str) -> Any:
    match name:
        case "delay":
            return (run.requested_at or run.created_at) - run.created_at
        case "run_at":
            return run.requested_at
        case "ttl":
            first = run.requested_at or run.created_at
            return None if run.expires_at is None else run.expires_at - first
        case _:
            return getattr(run, name)


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value)
