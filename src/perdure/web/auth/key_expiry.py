"""Why an API key, or one text of it, is no longer valid: as a refusal, and as a response header."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from msgspec.structs import replace

from perdure.core.run.run import Actor
from perdure.engine.operators.keys import ApiKey, Secret
from perdure.web.problems import Refusal, RequestRefused

ROTATED_HEADER = "perdure-key-rotated"
"""Of a response to a text that a rotation has replaced, until its overlap ends."""


def find_end(key: ApiKey, secret: Secret, now: datetime) -> RequestRefused | None:
    """Return why this secret of the key is not valid, or None if it is. Only for callers that have
    shown the secret."""
    if key.revoked_at is not None:
        problem = f"the key was revoked at {key.revoked_at} by {_name(key.revoked_by)}"
        return RequestRefused(Refusal.KEY_REVOKED, problem)
    if not key.is_valid(now):
        return RequestRefused(Refusal.KEY_EXPIRED, f"the key expired at {key.expires_at}")
    if secret.is_good(now):
        return None
    rotation = f"the key was rotated at {secret.replaced_at} by {_name(secret.replaced_by)}"
    problem = f"{rotation}, and this text of it ended at {secret.ends_at}; use the new text"
    return RequestRefused(Refusal.KEY_ROTATED, problem)


def current_secret(key: ApiKey, shown: Secret) -> Secret:
    """Return the secret that was shown earlier as it is now. One that the key no longer has was
    replaced by a rotation."""
    for secret in key.secrets:
        if secret.hash == shown.hash:
            return secret
    return replace(
        shown, ends_at=shown.made_at, replaced_at=key.rotated_at, replaced_by=key.rotated_by
    )


def find_end_instant(key: ApiKey, secret: Secret) -> datetime | None:
    """Return when the secret ends if nothing changes; None: never."""
    ends = [end for end in (key.expires_at, secret.ends_at) if end is not None]
    return min(ends, default=None)


def rotation_header(secret: Secret | None) -> dict[str, str]:
    """Return the header that tells the owner of a replaced text of the rotation."""
    if secret is None or secret.replaced_at is None or secret.ends_at is None:
        return {}
    by = quote(_name(secret.replaced_by), safe=" ()@:.-_")
    at, ends_at = secret.replaced_at.isoformat(), secret.ends_at.isoformat()
    return {ROTATED_HEADER: f'at="{at}", by="{by}", ends="{ends_at}"'}


def _name(actor: Actor | None) -> str:
    return "an unknown operator" if actor is None or actor.id is None else actor.id
