"""`app.audit_log`: read what operators ordered, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.audit_chain import SealedEntry
from perdure.core.run.run import Actor
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.operators.filters import page_limit
from perdure.engine.runtime.input import text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import Runtime
from perdure.errors import InvalidInput

MAX_ENTRIES_READ = 5_000
"""Entries that one page of a filter looks at."""
ENTRIES_PER_READ = 500


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """One order of an operator, where it stands in the sealed trail."""

    position: int
    hash: str
    at: datetime
    actor: Actor
    action: str
    outcome: str
    target: str | None
    reason: str | None
    request_id: str | None
    details: dict[str, Any] | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries; what is None does not matter. `actor` is the id of an operator, `target` the
    id or name of what an order is about."""

    action: str | None = None
    actor: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) is not None:
                text(getattr(self, name), name)

    @property
    def is_empty(self) -> bool:
        return self == AuditFilter()

    def fits(self, entry: SealedEntry) -> bool:
        said = entry.entry
        found = {"action": said.action, "actor": said.actor.id, "target": said.target}
        wanted = msgspec.structs.asdict(self)
        return all(value in (None, found[name]) for name, value in wanted.items())


class AuditPage(msgspec.Struct, frozen=True):
    """`cursor` continues after it. None: there are no older entries."""

    entries: Sequence[AuditView]
    cursor: str | None = None


@explain_methods
class AuditPages:
    """The audit log of the app's environment."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def page(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        target: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        """Return at most `limit` entries, newest first. One page of a filter looks at 5,000
        entries, so that it may hold fewer, or none, and yet have a cursor."""
        wanted = AuditFilter(action=action, actor=actor, target=target)
        return await read_page(AuditLog(self._runtime), wanted, page_limit(limit), cursor)


async def read_page(
    log: AuditLog, wanted: AuditFilter, limit: int, cursor: str | None
) -> AuditPage:
    """Raise InvalidInput for a cursor that no page had."""
    before = None if cursor is None else _position_of(cursor)
    found: list[AuditView] = []
    for _ in range(MAX_ENTRIES_READ // ENTRIES_PER_READ):
        most = limit if wanted.is_empty else ENTRIES_PER_READ
        entries = await log.read_newest(before=before, limit=most)
        if not entries:
            return AuditPage(found)
        for entry in entries:
            before = entry.position
            if wanted.fits(entry):
                found.append(_view(entry))
            if len(found) == limit:
                break
        if before == 1 or len(found) == limit:
            break
    return AuditPage(found, str(before) if before is not None and before > 1 else None)


def _position_of(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 16):
        raise InvalidInput("cursor", f"{cursor!r:.80} is not the cursor of a page")
    return int(cursor)


def _view(sealed: SealedEntry) -> AuditView:
    fields = msgspec.structs.asdict(sealed.entry)
    return AuditView(position=sealed.position, hash=sealed.hash, **fields)
