"""Hints: who carries them to other processes, and how they travel there, as JSON lists of topics in
parts that a transport can carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

_DECODER = msgspec.json.Decoder(frozenset[str])
ANYTHING = b"null"


class HintTransport(Protocol):
    """Carries "look now" to other processes. It may lose hints; it never makes a write fail."""

    rides: bool
    """Whether hints can travel with a commit; see `Storage.commit`."""

    async def notify(self, topics: frozenset[str]) -> None: ...

    async def listen(self, on_topics: Callable[[frozenset[str] | None], None]) -> None:
        """Tell of topics as they come, and None once on (re)connecting; until the end, or until
        the connection breaks."""
        ...


def pack(topics: frozenset[str], most_bytes: int) -> list[bytes]:
    """As few parts as that takes; a topic that fits in none is told as "anything"."""
    parts: list[bytes] = []
    part = b""
    for topic in sorted(topics):
        item = msgspec.json.encode(topic)
        if len(item) + 2 > most_bytes:
            return [ANYTHING]
        if part and len(part) + len(item) + 3 > most_bytes:
            parts.append(b"[%b]" % part)
            part = b""
        part = b"%b,%b" % (part, item) if part else item
    return [*parts, b"[%b]" % part] if part else parts


def unpack(data: bytes) -> frozenset[str] | None:
    """The topics, or None if anything may have changed; what nobody can read says that too."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
