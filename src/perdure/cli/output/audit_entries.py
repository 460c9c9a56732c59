"""`perdure audit --entries`: print the log of operators' orders."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from perdure.core.audit_chain import SealedEntry
    from perdure.engine.operators.audit_log import AuditEntries
    from perdure.engine.operators.audit_pages import AuditFilter

PAGE_SIZE = 1000


async def print_entries(
    log: AuditEntries, environment: str, wanted: AuditFilter, as_json: bool
) -> None:
    """Print the entries that fit, oldest first, one a line."""
    async for sealed in _read_entries(log, environment):
        if wanted.fits(sealed):
            click.echo(_encode(sealed) if as_json else _format(sealed))


async def _read_entries(log: AuditEntries, environment: str) -> AsyncIterator[SealedEntry]:
    after = 0
    while page := await log.audit_entries(environment, after=after, limit=PAGE_SIZE):
        for sealed in page:
            yield sealed
        after = page[-1].position


def _encode(sealed: SealedEntry) -> str:
    data = {"position": sealed.position, "hash": sealed.hash, **json.loads(sealed.body)}
    return json.dumps(data, ensure_ascii=False)


def _format(sealed: SealedEntry) -> str:
    entry = sealed.entry
    words = [str(sealed.position), entry.at.isoformat(), entry.actor.id or "-", entry.action]
    words += [entry.target or "-", entry.outcome]
    if entry.reason:
        words.append(f"reason={json.dumps(entry.reason, ensure_ascii=False)}")
    if entry.details:
        words.append(json.dumps(msgspec.to_builtins(entry.details), ensure_ascii=False))
    return "  ".join(words)
