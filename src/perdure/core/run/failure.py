"""What went wrong with an attempt, and the fingerprint that tells equal failures."""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import Any

import msgspec

from perdure.core.json_text import encode_value
from perdure.errors import InvalidInput

CRASH_MESSAGE = "worker lease expired during execution"
MAX_MESSAGE = 16 * 1024
MAX_DETAILS = 64 * 1024

# What differs between two occurrences of one fault: addresses, ids, numbers.
_NOISE = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    r"|\b[0-9a-fA-F]{16,}\b"
    r"|\d+(?:[.:,-]\d+)*"
)


class FailureKind(StrEnum):
    """Whose fault it was."""

    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    SYSTEM = "system"
    REJECTED = "rejected"


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt, or a claim that never became one, did not succeed."""

    kind: FailureKind
    type: str
    message: str
    fingerprint: str
    traceback: str | None = None
    retryable: bool = True
    details: dict[str, Any] | None = None


def make_failure(
    kind: FailureKind,
    *,
    type: str,
    message: str,
    traceback: str | None = None,
    retryable: bool = True,
    details: dict[str, Any] | None = None,
    limit: int = MAX_MESSAGE,
) -> Failure:
    """A failure with its fingerprint; texts are made safe to store and cut to `limit`."""
    message = clean_text(message, limit)
    return Failure(
        kind=kind,
        type=clean_text(type),
        message=message,
        fingerprint=fingerprint(kind, type, message),
        traceback=None if traceback is None else clean_text(traceback, limit),
        retryable=retryable,
        details=_kept(details),
    )


def _kept(details: dict[str, Any] | None) -> dict[str, Any] | None:
    """Details come from anywhere too; what JSON cannot keep must not cost the failure itself."""
    if details is None:
        return None
    try:
        kept: dict[str, Any] = json.loads(bytes(encode_value(details, limit=MAX_DETAILS)))
    except InvalidInput as error:
        return {"dropped": str(error)}
    return kept


def fingerprint(kind: FailureKind, type: str, message: str) -> str:
    """Equal for failures that differ only in numbers, ids, addresses and white space."""
    normal = " ".join(_NOISE.sub("#", message).split()).lower()
    text = "\x00".join((kind, type, normal))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def clean_text(text: str, limit: int = MAX_MESSAGE) -> str:
    """Error text comes from anywhere: no lone surrogates, no NUL, and never endless."""
    safe = storable_text(text)
    if len(safe) <= limit:
        return safe
    return f"{safe[:limit]}… ({len(safe) - limit} more characters)"


def storable_text(text: str) -> str:
    """Replace what no database stores: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def clean_reason(reason: str | None) -> str | None:
    """What an operator or a policy gives as its reason. Raises InvalidInput if that is no text."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise InvalidInput("reason", f"must be text, not {reason!r:.80}")
    return clean_text(reason)


CRASH = make_failure(FailureKind.CRASH, type="LeaseExpired", message=CRASH_MESSAGE)
