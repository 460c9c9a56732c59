"""The audit log: every order of an operator, sealed into a chain that shows tampering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from perdure.core.audit_chain import AuditEntry, SealedEntry, flaws, seal
from perdure.engine.runtime.input import By, actor_of
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.runtime.write import MOST_CONFLICTS
from perdure.errors import InvalidInput, PerdureError, StorageUnavailable
from perdure.telemetry.redactor import HIDDEN, Redactor

PAGE = 1000
_URL_FIELDS = ("url", "uri", "endpoint")


class AuditLog:
    """One environment's, by default the app's. Concurrent writers share a transaction."""

    def __init__(self, runtime: Runtime, environment: str | None = None) -> None:
        self._runtime = runtime
        self._environment = environment or runtime.environment
        self._waiting: list[tuple[AuditEntry, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def write(self, entry: AuditEntry) -> None:
        """Durable when it returns, and without secrets. Raises what storage raises."""
        entry = redact_entry(entry, self._runtime.redactor)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await written

    async def read(self, *, after: int = 0, limit: int = 100) -> Sequence[SealedEntry]:
        """Entries by position, oldest first."""
        storage = self._runtime.storage
        return await storage.audit_entries(self._environment, after=after, limit=limit)

    async def read_newest(
        self, *, before: int | None = None, limit: int = 100
    ) -> Sequence[SealedEntry]:
        """Entries before a position, newest first. Positions have no gaps, so that a page is
        shorter than `limit` only at the beginning of the log, or if entries were removed."""
        if before is None:
            head = await self._runtime.storage.audit_head(self._environment)
            before = 1 if head is None else head.position + 1
        first = max(before - limit, 1)
        if before <= first:
            return []
        entries = await self.read(after=first - 1, limit=before - first)
        return [sealed for sealed in reversed(entries) if sealed.position < before]

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            trouble = await self._append([entry for entry, _ in group])
            for _, written in group:
                if written.done():
                    continue
                if trouble is None:
                    written.set_result(None)
                else:
                    written.set_exception(trouble)

    async def _append(self, entries: Sequence[AuditEntry]) -> Exception | None:
        """Again where another process was faster."""
        storage, environment = self._runtime.storage, self._environment
        try:
            for _ in range(MOST_CONFLICTS):
                head = await storage.audit_head(environment)
                if await storage.append_audit(seal(environment, entries, head)):
                    return None
        except PerdureError as error:
            return error
        return StorageUnavailable("the audit log is being written by many at once; try again")


@asynccontextmanager
async def recorded(
    runtime: Runtime, by: By | UnsetType, action: str, target: str, **details: Any
) -> AsyncIterator[None]:
    """Write an order to the audit log once it is carried out: nothing else keeps its actor.

    With UNSET the caller writes the entry itself. Raises InvalidInput before the order begins.
    """
    actor = None if by is UNSET else actor_of(by)
    yield
    if actor is not None:
        order = AuditEntry(
            at=runtime.now(),
            actor=actor,
            action=action,
            target=target,
            outcome="done",
            details=details or None,
        )
        await AuditLog(runtime).write(order)


def redact_entry(entry: AuditEntry, redactor: Redactor) -> AuditEntry:
    """The same entry without secrets. Of URLs it does not repeat the query either."""
    details = None if entry.details is None else redactor.fields(_without_queries(entry.details))
    return replace(
        entry,
        target=None if entry.target is None else redactor.text(entry.target),
        reason=None if entry.reason is None else redactor.text(entry.reason),
        details=details,
    )


def _without_queries(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_query(inner) if name in _URL_FIELDS else _without_queries(inner)
            for name, inner in value.items()
        }
    return [_without_queries(inner) for inner in value] if isinstance(value, list) else value


def _without_query(url: Any) -> Any:
    """It may be refused as a URL, so it is not parsed."""
    if not isinstance(url, str) or "?" not in url:
        return url
    return f"{url.partition('?')[0]}?{HIDDEN}"


class TrailTotals(msgspec.Struct):
    """What a verification has seen. The head, kept elsewhere, shows later that no tail was cut."""

    entries: int = 0
    flaws: int = 0
    head: str | None = None


class AuditEntries(Protocol):
    """Where a verification reads the trail: the storage, or a server."""

    async def audit_entries(
        self, environment: str, *, after: int = 0, limit: int = 100
    ) -> list[SealedEntry]: ...


class Verification:
    """One pass over an environment's trail: `async for flaw in …`, then `totals`."""

    def __init__(self, source: AuditEntries, environment: str, anchor: str | None = None) -> None:
        self.totals = TrailTotals()
        self._source = source
        self._environment = environment
        self._anchor = None if anchor is None else read_anchor(anchor)

    async def flaws(self) -> AsyncIterator[str]:
        last: SealedEntry | None = None
        missing = self._anchor
        while page := await self._page(last):
            for flaw in flaws(page, last):
                self.totals.flaws += 1
                yield flaw
            if missing in [(it.position, it.hash) for it in page]:
                missing = None
            self.totals.entries += len(page)
            last = page[-1]
        if last is not None:
            self.totals.head = f"{last.position}:{last.hash}"
        if missing is not None:
            self.totals.flaws += 1
            yield f"the head that was kept, entry {missing[0]}, is not there any more"

    async def _page(self, last: SealedEntry | None) -> list[SealedEntry]:
        after = 0 if last is None else last.position
        return await self._source.audit_entries(self._environment, after=after, limit=PAGE)


def read_anchor(text: str) -> tuple[int, str]:
    """A head that a verification once told: `17:9f86…`. Raises InvalidInput."""
    position, colon, hash = text.partition(":")
    if not (colon and position.isdecimal() and len(hash) == 64):
        raise InvalidInput(
            "anchor", f"must be the head of a trail, e.g. 17:9f86…, not {text!r:.80}"
        )
    return int(position), hash
