"""Several rows of a run's history in one: the same events, compressed.

The row takes the place of the last one folded into it. It keeps where each of them was in the
change feed, so that a reader in between neither loses nor repeats an event.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from zlib import compress, decompress
from zlib import error as DamagedData

import msgspec

from perdure.errors import UnreadableHistory

_BEGINNING = '{"folded":"'


class HistoryRow(msgspec.Struct, frozen=True, array_like=True):
    """A row as it was before it was folded. `at`: its position, or its transaction id."""

    first_sequence: int
    at: str
    events: str


class _Folded(msgspec.Struct):
    folded: str


_encode_rows = msgspec.json.Encoder().encode
_decode_rows = msgspec.json.Decoder(list[HistoryRow]).decode
_decode_folded = msgspec.json.Decoder(_Folded).decode


def fold(rows: Sequence[HistoryRow]) -> str:
    """Return the text that stands for `rows` in the column `events`."""
    return f'{_BEGINNING}{b2a_base64(compress(_encode_rows(rows)), newline=False).decode()}"}}'


def is_folded(events: str) -> bool:
    return events.startswith(_BEGINNING)


def unfold(events: str) -> list[HistoryRow]:
    """Return the rows that `events` stands for. Raise UnreadableHistory if it is damaged."""
    try:
        return _decode_rows(decompress(a2b_base64(_decode_folded(events).folded)))
    except (ValueError, DamagedData) as error:
        raise UnreadableHistory("a folded history row", f"it is damaged: {error}") from error


def last_commit(events: str) -> str:
    """Return the events of a row, or of the last one that was folded into it."""
    return unfold(events)[-1].events if is_folded(events) else events
