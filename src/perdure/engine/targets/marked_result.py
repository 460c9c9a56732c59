"""The result of a target whose output is too long, if its task says `truncate=True`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.core.json_text import encode_value
from perdure.errors import PayloadTooLarge

MAX_ESCAPED_BYTES = 8
"""A character takes at most this many bytes of JSON."""


def mark_truncated(text: str, limit: int, cut: Callable[[str, int], str]) -> dict[str, Any]:
    """Return a result that says that it is not all of it. Only if it is longer than `limit` bytes
    of JSON, `cut` shortens the text to a number of characters that surely fits."""
    result = {"truncated": True, "text": text}
    try:
        encode_value(result, field="result", limit=limit)
    except PayloadTooLarge:
        return result | {"text": cut(text, limit // MAX_ESCAPED_BYTES)}
    return result


def keep_beginning(text: str, max_chars: int) -> str:
    return text[:max_chars]


def keep_both_ends(text: str, max_chars: int) -> str:
    head, tail = max_chars - max_chars // 2, max_chars // 2
    left_out = len(text) - head - tail
    return f"{text[:head]}\n… ({left_out} characters left out) …\n{text[len(text) - tail :]}"
