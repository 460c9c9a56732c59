"""API keys as text: `pk_<id>_<secret><checksum>`, letters and digits only.

The checksum tells a mistyped or cut key from a foreign one without looking it up, and lets
scanners for leaked secrets be sure of what they found. What is stored of the secret is its hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re

import msgspec

PREFIX = "pk"
PATTERN = r"pk_[0-9a-f]{12}_[0-9A-Za-z]{49}"
"""What scanners look for."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TEXT = re.compile(PATTERN)
_SECRET, _CHECKSUM = 43, 6


class Credential(msgspec.Struct, frozen=True):
    """A key that somebody shows: whose it says it is, and its secret."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Credential({self.id!r})"


def make_credential(random_bytes: bytes, key_id: str | None = None) -> tuple[Credential, str]:
    """From 38 random bytes: a credential with 256 bits of secret, and its text."""
    key_id = key_id or random_bytes[:6].hex()
    credential = Credential(key_id, _base62(int.from_bytes(random_bytes[6:38], "big"), _SECRET))
    start = f"{PREFIX}_{credential.id}_{credential.secret}"
    return credential, start + _checksum(start)


def read_credential(text: str) -> Credential | None:
    """None for what is no key: another form, or a checksum that does not fit."""
    if _TEXT.fullmatch(text) is None or text[-_CHECKSUM:] != _checksum(text[:-_CHECKSUM]):
        return None
    _, key_id, secret = text.split("_")
    return Credential(key_id, secret[:_SECRET])


def hash_secret(secret: str) -> str:
    """Of 256 random bits: no salt or slowness would add to that."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(first: str, second: str) -> bool:
    """Takes the same time wherever they differ."""
    return hmac.compare_digest(first.encode(), second.encode())


def _checksum(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return _base62(int.from_bytes(digest[:4], "big"), _CHECKSUM)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, rest = divmod(number, 62)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))
