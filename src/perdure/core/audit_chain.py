"""Who did what, sealed: each entry's hash covers the one before it, so that a changed, missing,
added or moved entry shows. What the chain alone cannot show is a cut tail; a head that was kept
elsewhere can."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from perdure.core.json_text import Instant
from perdure.core.run.run import Actor

BEGINNING = "0" * 64
"""What the first entry of an environment follows."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One order of an operator, and what became of it: `done`, or the kind of its refusal."""

    at: Instant
    actor: Actor
    action: str
    outcome: str
    target: str | None = None
    reason: str | None = None
    request_id: str | None = None
    details: dict[str, Any] | None = None


class SealedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry where it stands in its environment's chain; `body` is its JSON text, as hashed."""

    environment: str
    position: int
    body: str
    hash: str

    @property
    def entry(self) -> AuditEntry:
        return msgspec.json.decode(self.body, type=AuditEntry)


def seal(
    environment: str, entries: Iterable[AuditEntry], head: SealedEntry | None
) -> list[SealedEntry]:
    """The entries as they follow `head`, the last one that is stored."""
    sealed: list[SealedEntry] = []
    position, previous = (0, BEGINNING) if head is None else (head.position, head.hash)
    for entry in entries:
        position += 1
        body = msgspec.json.encode(entry).decode()
        previous = _hash(environment, position, body, previous)
        sealed.append(
            SealedEntry(environment=environment, position=position, body=body, hash=previous)
        )
    return sealed


def flaws(stored: Iterable[SealedEntry], head: SealedEntry | None = None) -> Iterator[str]:
    """What is wrong with entries that should follow `head`, each told once."""
    position, previous = (0, BEGINNING) if head is None else (head.position, head.hash)
    for found in stored:
        if found.position != position + 1:
            yield f"entry {position + 1} is missing: {found.position} follows {position}"
        elif found.hash != _hash(found.environment, found.position, found.body, previous):
            yield f"entry {found.position} is not the one that was sealed there"
        position, previous = found.position, found.hash


def _hash(environment: str, position: int, body: str, previous: str) -> str:
    text = f"{previous}\n{environment}\n{position}\n{body}"
    return hashlib.sha256(text.encode()).hexdigest()
