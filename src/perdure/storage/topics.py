"""Hints on the wire: lists of topics as JSON, in parts that a transport can carry."""

from __future__ import annotations

import msgspec

_DECODER = msgspec.json.Decoder(frozenset[str])
ANYTHING = b"null"


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
