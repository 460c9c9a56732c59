"""JSON values, kept as text: what goes in comes out byte for byte, on every adapter.

Refused at the door, with nothing written: NaN and infinities, lone surrogates, keys that are
not strings, nesting deeper than `MAX_DEPTH`, and anything longer than its limit.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from perdure.errors import InvalidInput, InvalidValue, PayloadTooLarge

MAX_DEPTH = 64
DEFAULT_LIMIT = 1024 * 1024
MAX_LABEL = 256
YEARS = range(3, 9998)
"""The years that an instant from outside may be in. The rest is for arithmetic with it: time
zones, jitter and whole years before and after it."""

NULL = msgspec.Raw(b"null")

Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A datetime with a time zone. Decoding a text without one fails, wherever it came from."""

StructT = TypeVar("StructT", bound=msgspec.Struct)

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_WHITE_SPACE = b" \t\r\n"
_LONGEST_ESCAPE_SAVING = 5
"""Bytes between an escape such as `\\u0041` and the shortest character that it stands for."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def encode_value(value: Any, *, field: str = "payload", limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
    """The JSON text of `value`, checked. Raises InvalidValue or PayloadTooLarge."""
    body = _dump(value, field)
    _check_size(len(body), field, limit)
    return msgspec.Raw(body)


def check_text(body: bytes, *, field: str = "payload", limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
    """Return JSON text from outside as it is, without the white space around it. The limit counts
    the bytes of the value: a text that is longer only by escapes and white space is returned
    without them."""
    text = body.strip(_WHITE_SPACE)
    is_long = len(text) > limit
    if is_long:
        _check_size(_least_size(text), field, limit)
    try:
        # Decoded here, because `json` would also take UTF-16 and byte order marks.
        value = json.loads(text.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep(field) from error
    except ValueError as error:
        raise InvalidValue(field, f"is not JSON: {error}") from error
    # Writing the parsed value finds what parsing alone lets through: surrogates, 1e999.
    compact = _dump(value, field)
    if is_long:
        _check_size(len(compact), field, limit)
    return msgspec.Raw(compact if is_long else text)


def _least_size(text: bytes) -> int:
    """Return how many bytes the value of a JSON text has at least, without parsing it."""
    plain = text.translate(None, _WHITE_SPACE)
    return len(plain) - _LONGEST_ESCAPE_SAVING * plain.count(b"\\u") - plain.count(b"\\/")


def decode_value(body: msgspec.Raw) -> Any:
    """The Python value of a checked JSON text."""
    return json.loads(bytes(body))


def as_it_will_be_read(value: StructT, field: str) -> StructT:
    """Written and read once, so that what cannot be read back is never stored."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=type(value))
    except RecursionError as error:
        raise _too_deep(field) from error
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, InvalidInput) as error:
        raise InvalidInput(field, f"cannot be kept: {error}") from error


def check_label(text: str, field: str, *, limit: int = MAX_LABEL) -> str:
    """A key, tag or name: 1 to `limit` bytes of UTF-8, no control characters or surrogates."""
    if not isinstance(text, str):
        raise InvalidValue(field, f"must be text, not {text!r:.80}")
    if _CONTROL.search(text):
        problem = f"must not hold control characters or lone surrogates, but is {text!r:.80}"
        raise InvalidValue(field, problem)
    if not 1 <= len(text.encode()) <= limit:
        problem = f"must have 1 to {limit} bytes, not {len(text.encode())}: {text!r:.80}"
        raise InvalidValue(field, problem)
    return text


def in_utc(instant: datetime, field: str) -> datetime:
    """The same moment in UTC, in which instants are kept. Raises InvalidInput if it is none."""
    if not isinstance(instant, datetime):
        raise InvalidInput(field, f"must be a datetime, not {instant!r:.80}")
    if instant.utcoffset() is None:
        problem = f"must be an instant that says its time zone, not {instant!r}"
        raise InvalidInput(field, f"{problem}; e.g. datetime.now(UTC)")
    try:
        moment = instant.astimezone(UTC)
    except OverflowError as error:
        raise _beyond_the_calendar(field) from error
    if moment.year not in YEARS:
        raise _beyond_the_calendar(field)
    return moment


def _beyond_the_calendar(field: str) -> InvalidInput:
    years = f"the years {YEARS[0]} to {YEARS[-1]}"
    return InvalidInput(field, f"lies beyond the calendar; it must be in {years}")


def _dump(value: Any, field: str) -> bytes:
    try:
        _check_shape(value, field)
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(field, "holds a lone surrogate, which is not Unicode text") from error
    except (TypeError, ValueError) as error:
        raise InvalidValue(field, f"cannot be kept as JSON: {error}") from error


def _check_shape(value: Any, field: str) -> None:
    """Depth and key types, without recursion, so that no value can exhaust the stack; each
    container once a level, so that a value within itself cannot exhaust the memory."""
    level = [value]
    for _ in range(MAX_DEPTH):
        children = {id(child): child for parent in level for child in _children(parent, field)}
        level = list(children.values())
        if not level:
            return
    raise _too_deep(field)


def _children(value: Any, field: str) -> list[Any]:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidValue(field, "has an object key that is not text")
        return [child for child in value.values() if isinstance(child, dict | list | tuple)]
    if isinstance(value, list | tuple):
        return [child for child in value if isinstance(child, dict | list | tuple)]
    return []


def _check_size(size: int, field: str, limit: int) -> None:
    if size > limit:
        raise PayloadTooLarge(field, size, limit)


def _too_deep(field: str) -> InvalidValue:
    return InvalidValue(field, f"is nested deeper than {MAX_DEPTH} levels")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
