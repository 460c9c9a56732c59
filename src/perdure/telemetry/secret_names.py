"""Decide by its name whether a field, a variable, a flag or a query parameter holds a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

SECRET_WORDS = (
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "mnemonic",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "secret",
    "secrets",
    "sessid",
    "sessionid",
    "token",
)
"""A name is secret if one of its words ends with one of these: PGPASSWORD is one word."""
SECRET_PHRASES = (
    "access_key",
    "access_tokens",
    "account_key",
    "api_key",
    "api_keys",
    "auth_tokens",
    "deploy_key",
    "encryption_key",
    "fernet_key",
    "hmac_key",
    "jwt",
    "license_key",
    "master_key",
    "private_key",
    "refresh_tokens",
    "service_key",
    "session_key",
    "shared_key",
    "signing_key",
    "ssh_key",
    "storage_key",
)
"""A name is secret if it contains one of these as whole words."""
WEAK_WORDS = ("dbpass", "dbpwd", "otp", "pass", "pwd", "smtppass", "sshpass", "totp", "userpass")
"""Whole words that are secret names only where the context supports it."""
_HARMLESS_ENDING = re.compile(
    "bucket|budget|counts?|enabled|env|expires|expiry|field|file|in|kind|length|limits?|names?|path"
    "|policy|rate|required|size|ttl|type|usage|used|version"
    "|conf|go|html|ini|js|json|log|md|py|rs|sql|toml|ts|txt|xml|yaml|yml"
)
"""`token_type`, `password_length` and `secrets.py` describe a secret and do not hold it."""
_ACCESS_KEY_ID = "access_key_id_"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SIGNATURES = frozenset({"hmac", "sas", "sig", "signature"})
_SHORT_IF_HARMLESS = frozenset({"assertion", "auth", "code", "key", "policy", "ticket"})
MIN_QUERY_SECRET = 16


def split_words(name: str) -> str:
    """Return `access_token` for `accessToken`, `access-token` and `ACCESS_TOKEN`."""
    return "_".join(_WORDS.findall(name)).lower()


def _is_harmless(ending: str) -> bool:
    return _HARMLESS_ENDING.fullmatch(ending) is not None


class SecretNames:
    """The built-in names, and those that an app adds."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self.keys = tuple(keys)
        self._parts = (
            *(f"{word}_" for word in SECRET_WORDS),
            *(f"_{phrase}_" for phrase in SECRET_PHRASES),
            *(f"_{split_words(key)}_" for key in self.keys),
        )
        self.is_secret = lru_cache(maxsize=4096)(self._is_secret)

    def _is_secret(self, name: str) -> bool:
        words = f"_{split_words(name)}_"
        if not any(part in words for part in self._parts) or words.endswith(_ACCESS_KEY_ID):
            return False
        return not _is_harmless(words.split("_")[-2])

    def is_weak(self, name: str) -> bool:
        """Whether the name has a word that is secret in some contexts only."""
        words = split_words(name).split("_")
        return not _is_harmless(words[-1]) and any(word in WEAK_WORDS for word in words)

    def is_secret_parameter(self, name: str, value: str) -> bool:
        """Whether a URL's query parameter holds a secret: also a signature, or a long key."""
        last = split_words(name).rpartition("_")[2]
        if last in _SIGNATURES or self.is_secret(name):
            return True
        return last in _SHORT_IF_HARMLESS and len(value) >= MIN_QUERY_SECRET
