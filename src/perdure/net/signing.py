"""Signatures after Standard Webhooks, so that a receiver can tell who called, and when.

The receiver verifies HMAC-SHA256 over `id.timestamp.body` with any library of that standard.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
SHORTEST_KEY = 24
LONGEST_KEY = 64


class BadSigningSecret(Exception):
    """The value is no key of the standard. It is not in the message."""

    def __str__(self) -> str:
        size = f"{SHORTEST_KEY} to {LONGEST_KEY} bytes"
        return f"a signing secret must be {PREFIX} followed by {size} in base64"


def signing_key(secret: str) -> bytes:
    """Raises BadSigningSecret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSigningSecret from None
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise BadSigningSecret
    return key


def signed(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one message: a signature for each secret, so that secrets can be changed
    while receivers know only the old one. Raises BadSigningSecret."""
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = [_signature(signing_key(secret), content) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def _signature(key: bytes, content: bytes) -> str:
    digest = hmac.new(key, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
